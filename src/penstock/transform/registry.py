"""The analyzers by the names under which graphs hold them."""

from typing import Any

from penstock.transform import learners, vocabulary_learners
from penstock.transform.learners import Learner

LEARNERS: dict[str, type[Learner[Any]]] = {
    "count_per_key": vocabulary_learners.LearnCountPerKey,
    "covariance": learners.LearnCovariance,
    "document_counts": learners.LearnDocumentCounts,
    "histogram": learners.LearnHistogram,
    "informative_vocabulary": vocabulary_learners.LearnInformativeVocabulary,
    "mean_and_var": learners.LearnMoments,
    "min_and_max": learners.LearnExtrema,
    "moments_per_key": learners.LearnMomentsPerKey,
    "quantiles": learners.LearnQuantiles,
    "quantiles_per_key": learners.LearnQuantilesPerKey,
    "size": learners.LearnSize,
    "sum": learners.LearnSum,
    "tukey": learners.LearnTukey,
    "vocabulary": vocabulary_learners.LearnVocabulary,
}
