"""Memory into which a decoder may write its result without a copy: for all decoders, whatever packages they need."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

ResultMemory = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any] | None]
"""Gives memory for an array of a shape and dtype; None where no such array is expected."""
