"""Users' functions: calls of them for rows, checks of their results, and descriptions by which they are recognised.

`in_processes` is imported when a dataset first uses it: few do, and it needs much of the standard library.
"""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.data.functions import in_processes as in_processes

__getattr__ = when_used(__name__, "in_processes")
