"""Layers that turn features into numbers: Keras's names, arguments and results, without TensorFlow.

They are called on NumPy arrays, on single elements in `dataset.map(layer)`, or on batches after `batch`. Random
layers draw from the generators that `dataset.map(layer, seed=...)` passes to them.
"""

from penstock.preprocessing.adapting import adapt_all as adapt_all
from penstock.preprocessing.category_encoding import CategoryEncoding as CategoryEncoding
from penstock.preprocessing.discretization import Discretization as Discretization
from penstock.preprocessing.feature_space import FeatureSpace as FeatureSpace
from penstock.preprocessing.hashed_crossing import HashedCrossing as HashedCrossing
from penstock.preprocessing.hashing import Hashing as Hashing
from penstock.preprocessing.images import CenterCrop as CenterCrop
from penstock.preprocessing.images import RandomCrop as RandomCrop
from penstock.preprocessing.images import RandomFlip as RandomFlip
from penstock.preprocessing.lookups import IntegerLookup as IntegerLookup
from penstock.preprocessing.lookups import StringLookup as StringLookup
from penstock.preprocessing.random_layer import random as random
from penstock.preprocessing.scaling import Normalization as Normalization
from penstock.preprocessing.scaling import Rescaling as Rescaling
from penstock.preprocessing.text_vectorization import TextVectorization as TextVectorization
