"""How many rows the replicas get in the steps of a distributed dataset, as far as that is known beforehand."""

from dataclasses import dataclass

from penstock.distribute.feed.agreed_input import AgreedInput
from penstock.distribute.feed.batch_nodes import last_may_be_short
from penstock.distribute.feed.inputs import rows_of_batches
from penstock.distribute.feed.options import PartialBatch
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.sharding import slice_bounds
from penstock.structure import flatten


@dataclass(frozen=True)
class StepRows:
    """The rows of the steps, and how many steps there are.

    Attributes:
        agreed: what all workers read.
        partial: what happens to a batch that does not fill all replicas equally.
    """

    agreed: AgreedInput
    partial: PartialBatch

    @property
    def full(self) -> int:
        """The rows of a replica in a full step; 0 where each step is full or partial for itself."""
        return self.agreed.full_rows if self.partial is not PartialBatch.DROP or self.agreed.exact else 0

    def cardinality(self) -> int:
        """The number of steps."""
        steps, lengths = self.agreed.cardinality, self.agreed.lengths
        if self.partial is not PartialBatch.DROP or steps == INFINITE_CARDINALITY:
            return steps
        if lengths is None:
            return UNKNOWN_CARDINALITY
        return min(self.agreed.inputs.full_steps_of(one.count - (one.last < one.rows)) for one in lengths)

    def of_every_step(self) -> int | None:
        """The rows of every replica in every step; None where they differ or cannot be known."""
        inputs, lengths = self.agreed.inputs, self.agreed.lengths
        cut, batch_rows = inputs.slices_per_batch, self._rows_of_batches()
        if self.partial is PartialBatch.RAGGED and inputs.workers.replicas_in_sync == 1:
            return batch_rows
        if self.partial is not PartialBatch.RAGGED and self.agreed.exact:
            return self.full
        if self.partial is PartialBatch.PAD and batch_rows is not None and not inputs.has_own_data:
            return max(self.full, -(-batch_rows // cut))
        if self.partial is not PartialBatch.RAGGED:
            return None
        if not inputs.has_own_data:
            return batch_rows // cut if batch_rows is not None and batch_rows % cut == 0 else None
        if lengths is None or any(one != lengths[0] or one.last != one.rows or one.rows % cut for one in lengths):
            return None
        rows = lengths[0].rows // cut
        ends = inputs.sizes_at(lengths, 0) + inputs.sizes_at(lengths, max(self.agreed.cardinality - 1, 0))
        return rows if all(size == rows for sizes in ends for size in sizes) else None

    def _rows_of_batches(self) -> int | None:
        """The rows of every batch; those of the first alone are assumed of others that have as many below functions."""
        dataset = self.agreed.inputs.dataset
        spec = dataset.element_spec
        assumed = 0 in flatten(spec)[0][0].assumed_axes
        return None if assumed and last_may_be_short(dataset.node) else rows_of_batches(spec)

    def of_a_ragged_step(self, full: int) -> set[int]:
        """The numbers of rows that replicas may have in one ragged step; empty if there is no ragged step.

        Where they cannot be known, the answer is that of a full step and one fewer.
        """
        if self.partial is not PartialBatch.RAGGED:
            return set()
        inputs, lengths = self.agreed.inputs, self.agreed.lengths
        if lengths is None:
            return {full, full - 1} if self.of_every_step() is None else set()
        one = lengths[0]
        if not inputs.has_own_data:
            batches = [slice_bounds(one.rows_of_batch(batch), inputs.slices_per_batch) for batch in (0, one.count - 1)]
            steps = [{stop - start for start, stop in bounds} for bounds in batches]
        else:
            ends = [inputs.sizes_at(lengths, step) for step in (0, max(self.agreed.cardinality - 1, 0))]
            steps = [{size for sizes in end for size in sizes} for end in ends]
        return next((sizes for sizes in steps if len(sizes) > 1), set())

    def may_be_none(self) -> bool:
        """Whether some replica may be left without rows in a step that others have, as far as is known."""
        inputs, lengths = self.agreed.inputs, self.agreed.lengths
        if self.partial is not PartialBatch.RAGGED or inputs.workers.replicas_in_sync == 1:
            return False
        if lengths is None:
            spec = inputs.dataset.element_spec
            rows = None if 0 in flatten(spec)[0][0].assumed_axes else rows_of_batches(spec)
            ends = inputs.has_own_data and self.agreed.cardinality != INFINITE_CARDINALITY
            return rows is None or ends or _has_empty(rows, inputs.slices_per_batch)
        if not inputs.has_own_data:
            return any(_has_empty(rows, inputs.slices_per_batch) for rows in {lengths[0].rows, lengths[0].last})
        # Between these batches all are alike.
        batches = {batch for one in lengths for batch in (0, one.count - 1, one.count) if batch >= 0}
        turns = range(inputs.steps_of(1))
        steps = [inputs.sizes_at(lengths, batch * len(turns) + turn) for batch in batches for turn in turns]
        return any(any(map(any, sizes)) and not all(map(all, sizes)) for sizes in steps)


def _has_empty(rows: int, slices: int) -> bool:
    """Whether a batch of so many rows leaves some of so many slices without any."""
    start, stop = slice_bounds(rows, slices)[-1]
    return start == stop
