"""Memory into which a decoder may write its result, so that nothing copies it afterwards."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

ResultMemory = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any] | None]
"""Gives memory for an array of a shape and dtype; None where no such array is expected."""
