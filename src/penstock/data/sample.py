"""The specification of elements that only a user's function can tell: found by reading some."""

from typing import Any

import numpy as np

from penstock.data.node import Node, Run
from penstock.data.operators.batching import Batching
from penstock.errors import ElementError
from penstock.options import INFINITE_CARDINALITY
from penstock.runtime.threads import Threads
from penstock.spec import TensorSpec
from penstock.structure import map_structure


def sampled_spec(node: Node) -> Any:
    """The specification that covers the first element and, by index, the last.

    Over a stream of batches the last may be shorter, so the leading axis stays open there.

    Raises:
        ElementError: there is no element.
    """
    threads = Threads()
    run = Run(node, 0, threads)
    try:
        if node.indexable and node.cardinality != 0:
            last = node.cardinality - 1 if node.cardinality != INFINITE_CARDINALITY else 0
            return node.read(run, 0, np.array([0, last])).spec()
        cursor = node.cursor(run, 0)
        try:
            block = cursor.pull(1, 1)
        finally:
            cursor.close()
        if block is None:
            raise ElementError(f"{node.where()} has no elements to tell their specification from")
        partial = any(isinstance(below, Batching) and not below.drop_remainder for below in node.walk())
        return map_structure(_opened, block.spec()) if partial else block.spec()
    finally:
        threads.stop()
        threads.join()


def _opened(spec: TensorSpec) -> TensorSpec:
    return TensorSpec((None, *spec.shape[1:]), spec.dtype) if spec.shape else spec
