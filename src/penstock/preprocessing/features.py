"""Parts of a FeatureSpace: features, each with the layer that turns it into numbers, and crosses of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.configuration import plain
from penstock.preprocessing.layer import ArrayLayer, check_choice

_IDENTITY = "TFDIdentity"  # what Keras calls the layer of a plain "float"


@dataclass(frozen=True)
class Feature:
    """One feature, and the layer that turns it into numbers.

    Attributes:
        dtype: "float32", "int32", "int64" or "string".
        preprocessor: the layer of `ps.preprocessing` that is applied; None for a number that is used as it is.
        output_mode: "float" and "int" for the layer's results, "one_hot" for a vector of its integers.
    """

    dtype: str
    preprocessor: ArrayLayer | None
    output_mode: str

    def __post_init__(self) -> None:
        check_choice("Feature", "dtype", self.dtype, ("float32", "int32", "int64", "string"))
        check_choice("Feature", "output_mode", self.output_mode, ("float", "int", "one_hot"))
        if self.preprocessor is not None and not isinstance(self.preprocessor, ArrayLayer):
            raise InvalidTypeError(
                f"Feature(preprocessor=...) takes a layer of ps.preprocessing, got {self.preprocessor!r}"
            )

    def get_config(self) -> dict[str, Any]:
        """The feature as plain data."""
        layer = self.preprocessor
        described = None if layer is None else {"class_name": type(layer).__name__, "config": layer.get_config()}
        return {"dtype": self.dtype, "preprocessor": described, "output_mode": self.output_mode}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> "Feature":
        """The feature that `get_config` described, here or in Keras."""
        described = config["preprocessor"]
        if described is None or described["class_name"] == _IDENTITY:
            return Feature(config["dtype"], None, config["output_mode"])
        name = described["class_name"]
        if name not in ArrayLayer.classes:
            raise InvalidArgumentError(f"FeatureSpace.from_config: ps.preprocessing has no layer {name!r}")
        layer = ArrayLayer.classes[name].from_config(described["config"])
        return Feature(config["dtype"], layer, config["output_mode"])


@dataclass(frozen=True)
class Cross:
    """Features whose values are hashed together.

    Attributes:
        feature_names: at least two names.
        crossing_dim: the number of bins.
        output_mode: "int" for the bin, "one_hot" for a vector of it.
    """

    feature_names: Sequence[str]
    crossing_dim: int
    output_mode: str = "one_hot"

    def __post_init__(self) -> None:
        check_integer("Cross", "crossing_dim", self.crossing_dim, minimum=1)
        check_choice("Cross", "output_mode", self.output_mode, ("int", "one_hot"))
        object.__setattr__(self, "feature_names", tuple(self.feature_names))
        if len(self.feature_names) < 2:
            raise InvalidArgumentError(f"Cross(feature_names=...) takes at least two names, got {self.feature_names}")

    @property
    def name(self) -> str:
        """The cross's key in a dictionary of results."""
        return "_X_".join(self.feature_names)

    def get_config(self) -> dict[str, Any]:
        """The cross as plain data."""
        return {name: plain(value) for name, value in vars(self).items()}


def unwrapped(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The inner configuration, if Keras has wrapped it with the name of its class."""
    return config["config"] if config.get("class_name") == name else config
