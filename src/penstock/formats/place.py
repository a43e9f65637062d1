"""Where what is decoded will stand in the end."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Place = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any] | None]
"""Gives memory for an array of a shape and dtype; None where no such array is expected."""
