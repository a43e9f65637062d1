"""Functions of the user's: how rows are given to them, what they promise, and how they are recognised again.

What calls functions in processes is imported when a dataset uses it first: few do, and it needs much of the standard
library.
"""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.data.functions import in_processes as in_processes

__getattr__ = when_used(__name__, "in_processes")
