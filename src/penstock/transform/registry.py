"""The analyzers by the names under which graphs hold them."""

from penstock.transform import learners, vocabulary_learners
from penstock.transform.learners import Learner

LEARNERS: dict[str, type[Learner]] = {
    "count_per_key": vocabulary_learners.CountPerKey,
    "covariance": learners.Covariance,
    "document_counts": learners.DocumentCounts,
    "histogram": learners.Histogram,
    "mean_and_var": learners.MeanAndVar,
    "min_and_max": learners.MinAndMax,
    "moments_per_key": learners.MomentsPerKey,
    "quantiles": learners.Quantiles,
    "quantiles_per_key": learners.QuantilesPerKey,
    "size": learners.Size,
    "sum": learners.Sum,
    "tukey": learners.Tukey,
    "vocabulary": vocabulary_learners.VocabularyOfTokens,
}
