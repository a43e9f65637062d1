"""FeatureSpace: dictionaries of features to one vector, or to a dictionary of numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from penstock.data.block import Column, column_of, is_ragged
from penstock.data.dataset import Dataset
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.adapting import adapt_columns
from penstock.preprocessing.discretization import Discretization
from penstock.preprocessing.encode import encode
from penstock.preprocessing.features import Cross, Feature, unwrapped
from penstock.preprocessing.hashed_crossing import HashedCrossing
from penstock.preprocessing.hashing import Hashing
from penstock.preprocessing.layer import Layer, LearningLayer, check_choice, check_finite
from penstock.preprocessing.lookups import IntegerLookup, StringLookup
from penstock.preprocessing.scaling import Normalization, Rescaling
from penstock.service.security.resolving import Service

_TYPES = (
    "float",
    "float_normalized",
    "float_rescaled",
    "float_discretized",
    "integer_categorical",
    "string_categorical",
    "integer_hashed",
    "string_hashed",
)

Array = npt.NDArray[Any]


class FeatureSpace(Layer):
    """Turns dictionaries of features into numbers for a model; an element, a batch or a block at a time.

    A feature is a number or a string for each sample, or a row of them: shapes (), (batch,) and (batch, n).

    Args:
        features: for each name its type, "float", "float_normalized", "float_rescaled", "float_discretized",
            "integer_categorical", "string_categorical", "integer_hashed" or "string_hashed", or what the methods of
            these names return, which take further arguments.
        output_mode: "concat" for one vector, the features in the order of their names and then the crosses; "dict" for
            a dictionary.
        crosses: tuples of names of features, or what `FeatureSpace.cross` returns, to be hashed together.
        crossing_dim: the number of bins of a cross.
        hashing_dim: the number of bins of "integer_hashed" and "string_hashed".
        num_discretization_bins: the number of bins of "float_discretized".

    Raises:
        InvalidArgumentError: no features, an unknown type, or a cross of unknown features.

    Example:
        >>> space = FeatureSpace({"size": "float_normalized", "word": "string_categorical"})
        >>> _ = space.adapt({"size": [1.0, 5.0, 1.0, 5.0], "word": ["b", "a", "b", "b"]})
        >>> space({"size": [3.0, 5.0], "word": ["a", "z"]})
        array([[0., 0., 0., 1.],
               [1., 1., 0., 0.]], dtype=float32)
    """

    why_not_keras = "Keras's own needs TensorFlow, and XLA has no strings"

    def __init__(
        self,
        features: Mapping[str, str | Feature],
        output_mode: str = "concat",
        crosses: Sequence[Cross | Sequence[str]] | None = None,
        crossing_dim: int = 32,
        hashing_dim: int = 32,
        num_discretization_bins: int = 32,
    ) -> None:
        if not features:
            raise InvalidArgumentError(f"FeatureSpace(features=...) takes a dictionary of features, got {features!r}")
        self.output_mode = check_choice("FeatureSpace", "output_mode", output_mode, ("concat", "dict"))
        self.crossing_dim = check_integer("FeatureSpace", "crossing_dim", crossing_dim, minimum=1)
        self.hashing_dim = check_integer("FeatureSpace", "hashing_dim", hashing_dim, minimum=1)
        self.num_discretization_bins = check_integer(
            "FeatureSpace", "num_discretization_bins", num_discretization_bins, minimum=1
        )
        self.features = {name: self._feature(name, feature) for name, feature in sorted(features.items())}
        self.crosses = [
            cross if isinstance(cross, Cross) else Cross(cross, self.crossing_dim) for cross in crosses or ()
        ]
        self.crosses.sort(key=lambda cross: cross.name)
        for cross in self.crosses:
            unknown = set(cross.feature_names) - set(self.features)
            if unknown:
                raise InvalidArgumentError(
                    f"FeatureSpace(crosses=...): {cross.name} is made of features that are not there: {sorted(unknown)}"
                )
        if self.output_mode == "concat":
            self._refuse_integers()

    def _feature(self, name: str, feature: str | Feature) -> Feature:
        if isinstance(feature, Feature):
            return feature
        check_choice("FeatureSpace", f"features[{name!r}]", feature, _TYPES)
        if feature == "float_discretized":
            return self.float_discretized(self.num_discretization_bins)
        make = getattr(self, feature)
        return make(self.hashing_dim) if feature.endswith("hashed") else make()  # type: ignore[no-any-return]

    def _refuse_integers(self) -> None:
        modes = [(name, feature.output_mode) for name, feature in self.features.items()]
        modes += [(cross.name, cross.output_mode) for cross in self.crosses]
        integers = [name for name, mode in modes if mode == "int"]
        if integers:
            raise InvalidArgumentError(
                f"FeatureSpace(output_mode='concat') has no place for the integers of {integers}: give these "
                "output_mode='one_hot', or the space output_mode='dict'"
            )

    @staticmethod
    def cross(feature_names: Sequence[str], crossing_dim: int, output_mode: str = "one_hot") -> Cross:
        """Features to be hashed together into `crossing_dim` bins."""
        return Cross(feature_names, crossing_dim, output_mode)

    @staticmethod
    def feature(dtype: str, preprocessor: Any, output_mode: str) -> Feature:
        """A feature with a layer of `ps.preprocessing` of your own."""
        return Feature(dtype, preprocessor, output_mode)

    @staticmethod
    def float() -> Feature:
        """A number as it is."""
        return Feature("float32", None, "float")

    @staticmethod
    def float_rescaled(scale: Any = 1.0, offset: Any = 0.0) -> Feature:
        """A number times `scale` plus `offset`."""
        return Feature("float32", Rescaling(scale, offset), "float")

    @staticmethod
    def float_normalized() -> Feature:
        """A number with mean 0 and variance 1 over what the space is adapted to."""
        return Feature("float32", Normalization(axis=-1), "float")

    @staticmethod
    def float_discretized(
        num_bins: int | None = None, bin_boundaries: Sequence[Any] | None = None, output_mode: str = "one_hot"
    ) -> Feature:
        """The bin a number falls into, between boundaries that are given or learned."""
        return Feature("float32", Discretization(bin_boundaries, num_bins), output_mode)

    @staticmethod
    def integer_categorical(
        max_tokens: int | None = None, num_oov_indices: int = 1, output_mode: str = "one_hot"
    ) -> Feature:
        """The index of an integer in a vocabulary that is learned."""
        return Feature("int32", IntegerLookup(max_tokens, num_oov_indices), output_mode)

    @staticmethod
    def string_categorical(
        max_tokens: int | None = None, num_oov_indices: int = 1, output_mode: str = "one_hot"
    ) -> Feature:
        """The index of a string in a vocabulary that is learned."""
        return Feature("string", StringLookup(max_tokens, num_oov_indices), output_mode)

    @staticmethod
    def integer_hashed(num_bins: int, output_mode: str = "one_hot") -> Feature:
        """The bin of an integer's hash."""
        return Feature("int32", Hashing(num_bins), output_mode)

    @staticmethod
    def string_hashed(num_bins: int, output_mode: str = "one_hot") -> Feature:
        """The bin of a string's hash."""
        return Feature("string", Hashing(num_bins), output_mode)

    def adapt(self, data: Any, service: Service | None = None) -> Self:
        """Learn what the features need, vocabularies, means and boundaries, in one pass over the data.

        Args:
            data: a finite dataset of dictionaries, of samples or of batches, or a dictionary of arrays.
            service: the data service whose workers read the data and learn; None for this process.

        Raises:
            InvalidTypeError: neither a dataset nor a dictionary.
            InvalidArgumentError: an infinite dataset, or one without samples.
        """
        dataset = Dataset.from_tensor_slices(dict(data)) if isinstance(data, Mapping) else data
        if not isinstance(dataset, Dataset):
            raise InvalidTypeError(f"FeatureSpace.adapt(data) takes a ps.Dataset or a dictionary, got {data!r:.100}")
        check_finite("FeatureSpace.adapt(data)", dataset)
        layers = {
            name: feature.preprocessor
            for name, feature in self.features.items()
            if isinstance(feature.preprocessor, LearningLayer) and feature.preprocessor.can_adapt
        }
        if layers:
            specs = dataset.element_spec
            if not isinstance(specs, Mapping):
                raise InvalidTypeError(
                    f"FeatureSpace.adapt(data) takes elements that are dictionaries, got {specs!r:.100}: "
                    "use map(lambda features, label: features)"
                )
            batched = any(_of(specs, name).shape for name in layers)
            rows = dataset.map(_Chosen(list(layers)))
            rows = rows.unbatch() if batched else rows
            what, where = "FeatureSpace.adapt", "FeatureSpace.adapt(data), feature"
            adapt_columns(layers, rows, service, what, where, vectors=True)
        return self

    def __call__(self, data: Mapping[str, Any], *others: Any) -> Any:
        """The features as float32 of shape (..., width), or as a dictionary; batches of features give a batch.

        Raises:
            InvalidTypeError: not a dictionary, or several arguments, which `map` passes for elements that are tuples.
        """
        if others or not isinstance(data, Mapping):
            raise InvalidTypeError(
                f"FeatureSpace takes a dictionary of features, got {(data, *others) if others else data!r:.100}: of "
                "elements with labels use map(lambda features, label: (space(features), label))"
            )
        return self._encoded({name: _as_array(_of(data, name)) for name in self.features}, 0)

    def _map_block(self, columns: Mapping[str, Column]) -> Any:
        """The results for all rows of these columns."""
        used = {name: columns[name] for name in self.features}
        layers = [feature.preprocessor for feature in self.features.values()]
        if not any(map(is_ragged, used.values())) and not any(getattr(layer, "pads", False) for layer in layers):
            return self._encoded(used, 1)
        rows = [self(dict(zip(used, row, strict=True))) for row in zip(*used.values(), strict=True)]
        if self.output_mode == "concat":
            return column_of(rows)
        return {name: column_of([row[name] for row in rows]) for name in rows[0]}

    def _encoded(self, data: dict[str, Array], leading: int) -> Any:
        batch = {name: array.shape[:-1] if array.ndim - leading > 1 else array.shape for name, array in data.items()}
        shape = next(iter(batch.values()))
        if set(batch.values()) != {shape}:
            raise InvalidArgumentError(f"FeatureSpace takes features of equally many samples, got {batch}")
        samples = int(np.prod(shape))
        numbers = {
            name: self._preprocessed(name, array.reshape(samples, 1 if array.shape == shape else array.shape[-1]))
            for name, array in data.items()
        }
        results = {
            name: _output(numbers[name], feature.output_mode, getattr(feature.preprocessor, "depth", None), name)
            for name, feature in self.features.items()
        }
        for cross in self.crosses:
            bins = HashedCrossing(cross.crossing_dim)([numbers[name] for name in cross.feature_names])
            results[cross.name] = _output(bins, cross.output_mode, cross.crossing_dim, cross.name)
        if self.output_mode == "dict":
            return {name: result.reshape(*shape, result.shape[-1]) for name, result in results.items()}
        joined = np.concatenate(list(results.values()), axis=-1)
        return joined.reshape(*shape, joined.shape[-1])

    def _preprocessed(self, name: str, values: Array) -> Array:
        layer = self.features[name].preprocessor
        try:
            return np.asarray(values, np.float32) if layer is None else np.asarray(layer(values))
        except Exception as error:
            error.add_note(f"penstock: in FeatureSpace, feature {name!r}")
            raise

    def get_config(self) -> dict[str, Any]:
        return {
            "features": {name: feature.get_config() for name, feature in self.features.items()},
            "output_mode": self.output_mode,
            "crosses": [cross.get_config() for cross in self.crosses],
            "crossing_dim": self.crossing_dim,
            "hashing_dim": self.hashing_dim,
            "num_discretization_bins": self.num_discretization_bins,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The space that `get_config` described, here or in Keras, with the values learned here."""
        own = dict(unwrapped(config, "FeatureSpace"))
        features = {name: Feature.from_config(unwrapped(part, "Feature")) for name, part in own.pop("features").items()}
        crosses = [Cross(**unwrapped(part, "Cross")) for part in own.pop("crosses")]
        return cls(features, crosses=crosses, **own)


class _Chosen:
    """Some features of each element, or of all elements of a block."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def __call__(self, features: Mapping[str, Any]) -> dict[str, Any]:
        return {name: features[name] for name in self._names}

    _map_block = __call__


def _of(data: Mapping[str, Any], name: str) -> Any:
    if name not in data:
        raise InvalidArgumentError(f"FeatureSpace: feature {name!r} is not there, got {sorted(data)}")
    return data[name]


def _as_array(value: Any) -> Array:
    array = np.asarray(value)
    return np.array(value, object) if array.dtype.kind in "US" and not isinstance(value, np.ndarray) else array


def _output(numbers: Array, mode: str, depth: int | None, name: str) -> Array:
    """One row of numbers for each sample."""
    if mode != "one_hot":
        return numbers
    if depth is None or numbers.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"FeatureSpace: feature {name!r} has output_mode='one_hot', but its layer gives no index of known range: "
            "give it output_mode='int' or 'float'"
        )
    return encode(numbers, "multi_hot", depth, leading=0)
