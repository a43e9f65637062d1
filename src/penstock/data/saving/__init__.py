"""Saving datasets: in shards, resumed where it was killed, and as snapshots; and loading them.

It is imported when a dataset is saved or loaded: few programs do that, and it needs much of the standard library.
"""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.data.saving import load as load
    from penstock.data.saving import save as save

__getattr__ = when_used(__name__, "load", "save")
