"""Full-pass analysis: a preprocessing function whose means, vocabularies and quantiles are learned from all rows.

`analyze` traces the function once, learns in one pass for each level of nested analyzers, and saves the
transform in a directory, from which `TransformOutput` reads it for training and for serving. Names, arguments and
results of analyzers and mappers are those of TensorFlow Transform.
"""

from inspect import isfunction as _isfunction

from penstock.transform.analyzers import count_per_key as count_per_key
from penstock.transform.analyzers import covariance as covariance
from penstock.transform.analyzers import histogram as histogram
from penstock.transform.analyzers import max as max
from penstock.transform.analyzers import mean as mean
from penstock.transform.analyzers import min as min
from penstock.transform.analyzers import pca as pca
from penstock.transform.analyzers import quantiles as quantiles
from penstock.transform.analyzers import size as size
from penstock.transform.analyzers import sum as sum
from penstock.transform.analyzers import tukey_h_params as tukey_h_params
from penstock.transform.analyzers import tukey_location as tukey_location
from penstock.transform.analyzers import tukey_scale as tukey_scale
from penstock.transform.analyzers import var as var
from penstock.transform.arguments import checked as _checked
from penstock.transform.bucketing import apply_buckets as apply_buckets
from penstock.transform.bucketing import apply_buckets_with_interpolation as apply_buckets_with_interpolation
from penstock.transform.bucketing import bucketize as bucketize
from penstock.transform.bucketing import bucketize_per_key as bucketize_per_key
from penstock.transform.comparing import compare as compare
from penstock.transform.documents import document_frequency as document_frequency
from penstock.transform.documents import idf as idf
from penstock.transform.documents import tfidf as tfidf
from penstock.transform.output import TransformOutput as TransformOutput
from penstock.transform.passes import analyze as analyze
from penstock.transform.scaling import estimated_probability_density as estimated_probability_density
from penstock.transform.scaling import scale_by_min_max as scale_by_min_max
from penstock.transform.scaling import scale_by_min_max_per_key as scale_by_min_max_per_key
from penstock.transform.scaling import scale_to_0_1 as scale_to_0_1
from penstock.transform.scaling import scale_to_0_1_per_key as scale_to_0_1_per_key
from penstock.transform.scaling import scale_to_gaussian as scale_to_gaussian
from penstock.transform.scaling import scale_to_z_score as scale_to_z_score
from penstock.transform.scaling import scale_to_z_score_per_key as scale_to_z_score_per_key
from penstock.transform.tokens import apply_vocabulary as apply_vocabulary
from penstock.transform.tokens import bag_of_words as bag_of_words
from penstock.transform.tokens import call as call
from penstock.transform.tokens import (
    compute_and_apply_approximate_vocabulary as compute_and_apply_approximate_vocabulary,
)
from penstock.transform.tokens import compute_and_apply_vocabulary as compute_and_apply_vocabulary
from penstock.transform.tokens import deduplicate_tensor_per_row as deduplicate_tensor_per_row
from penstock.transform.tokens import fill_missing as fill_missing
from penstock.transform.tokens import (
    get_num_buckets_for_transformed_feature as get_num_buckets_for_transformed_feature,
)
from penstock.transform.tokens import hash_strings as hash_strings
from penstock.transform.tokens import join as join
from penstock.transform.tokens import lower as lower
from penstock.transform.tokens import ngrams as ngrams
from penstock.transform.tokens import regex_replace as regex_replace
from penstock.transform.tokens import sparse_tensor_to_dense_with_shape as sparse_tensor_to_dense_with_shape
from penstock.transform.tokens import split as split
from penstock.transform.tokens import strip as strip
from penstock.transform.tokens import upper as upper
from penstock.transform.tokens import word_count as word_count
from penstock.transform.vocabulary_analyzers import approximate_vocabulary as approximate_vocabulary
from penstock.transform.vocabulary_analyzers import vocabulary as vocabulary

for _name, _function in list(globals().items()):
    if _isfunction(_function) and not _name.startswith("_"):
        globals()[_name] = _checked(_function)
