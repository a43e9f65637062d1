"""assert_cardinality: a length that the user declares, and that is checked."""

from penstock.data.block import Block
from penstock.data.node import SameElements, derived
from penstock.data.operator_streams import OperatorStream
from penstock.errors import CardinalityError
from penstock.options import INFINITE_CARDINALITY
from penstock.runtime.threads import failures


class AssertCardinality(SameElements, name="assert_cardinality"):
    """The same elements, of which there must be `expected`."""

    expected: int

    @derived
    def cardinality(self) -> int:
        return self.expected

    @derived
    def indexable(self) -> bool:
        return self.input.indexable and self.input.cardinality == self.expected


class AssertCardinalityStream(OperatorStream[AssertCardinality], of=AssertCardinality):
    """The state is the input's, the number of elements so far, and whether their number was wrong."""

    counts = ("_met", "_wrong")
    _met = 0
    _wrong = False

    def pull(self, need: int, allow: int) -> Block | None:
        if self._wrong:
            return None
        expected = self._node.expected
        endless = expected == INFINITE_CARDINALITY
        # At the end one more is pulled, which must not exist.
        left = allow if endless else max(expected - self._met, 1)
        try:
            block = self._input.pull(min(need, left), min(allow, left))
        except failures():
            self._met += 1  # a failed element counts
            raise
        if block is None and self._met == expected:
            return None
        too_many = not endless and self._met >= expected
        if block is None or too_many:
            self._wrong = True
            wanted = "elements without end" if endless else f"{expected} elements"
            found = "more" if too_many else f"only {self._met}"
            raise CardinalityError(f"{self._node.where()}: expected {wanted}, got {found}")
        self._met += len(block)
        return block
