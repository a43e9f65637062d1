"""What the workers of a distributed dataset agree on before its first epoch: files, seeds, lengths."""

import itertools
import logging
from dataclasses import dataclass

from penstock.data.listings import digest_of_names
from penstock.distribute.control.channel import Control
from penstock.distribute.control.made_by_all import SETUP_SECONDS
from penstock.distribute.control.messages import WorkerInput
from penstock.distribute.feed.inputs import Inputs, Lengths, longest
from penstock.errors import StorageError, WorkerError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.rng import draw_seed

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgreedInput:
    """What this worker reads, and what it knows of the others.

    Attributes:
        inputs: what this worker reads, with the seeds and the files that all use.
        cardinality: the number of steps, for the worker that has most.
        lengths: of each worker's own data, where every worker knows its own.
        same_layout: whether all workers know the dtypes and shapes of their rows beforehand, and have the same.
        full_rows: the rows of a replica in a full step; 0 where the workers' batches have no one size.
        exact: whether that is known, and no function of the user's may have changed them.
    """

    inputs: Inputs
    cardinality: int
    lengths: list[Lengths] | None
    same_layout: bool
    full_rows: int
    exact: bool


def agree_on_input(call: str, inputs: Inputs, control: Control | None) -> AgreedInput:
    """Agree with the other workers on what all read.

    Raises:
        WorkerError: they distribute different datasets, or one of them did not come.
        StorageError: a worker cannot read a file that worker 0 has listed.
    """
    lengths, layout, cardinality = inputs.lengths, inputs.layout(), inputs.cardinality()
    full = inputs.full_rows, inputs.exact
    if inputs.shard is not None and inputs.workers.count > 1:
        _logger.info("%s shards by %s: %s", call, inputs.shard.policy.name, inputs.shard.reason)
    if control is None:
        inputs.fix_seeds_alone()
        return _agreed(inputs, cardinality, inputs.lengths_of_all(), full, same_layout=layout is not None)
    known_lengths = None if lengths is None else (lengths.count, lengths.rows, lengths.last)
    listed = [digest_of_names(names) for names in inputs.listed]
    own = WorkerInput(inputs.labels, draw_seed(), inputs.drawn, cardinality, known_lengths, layout, listed, full)
    answers = control.gather(call, own, WorkerInput, timeout=SETUP_SECONDS)
    others = [one.listed for one in answers]
    if any(one != others[0] for one in others) and len(set(map(len, others))) == 1:
        return agree_on_input(call, _over_files_of_the_first(call, inputs, control), control)
    for worker, other_input in enumerate(answers):
        if other_input.labels != answers[0].labels:
            pairs = itertools.zip_longest(answers[0].labels, other_input.labels, fillvalue="nothing")
            first, other = next(pair for pair in pairs if pair[0] != pair[1])
            raise WorkerError(
                f"{call}: the {control.member}s distribute different datasets: {first} on {control.member} 0 is "
                f"{other} on {control.member} {worker}"
            )
    inputs.fix_seeds(answers[0].seed, answers[0].drawn)
    counted = [Lengths(*one.lengths) for one in answers if one.lengths]
    most = longest([one.cardinality for one in answers])
    same_layout = layout is not None and all(one.leaves == layout for one in answers)
    if any(one.full_rows != full for one in answers):
        full = 0, False
    return _agreed(inputs, most, counted if len(counted) == len(answers) else None, full, same_layout=same_layout)


def _over_files_of_the_first(call: str, inputs: Inputs, control: Control) -> Inputs:
    """The inputs over the files that worker 0 has listed.

    If files are added or deleted meanwhile, the workers may have listed different ones.

    Raises:
        StorageError: a worker cannot read one of them; the same on every worker.
    """
    own = inputs.listed
    (names, *_) = control.gather(
        f"{call}: files", own if control.worker == 0 else [], list[list[str]], timeout=SETUP_SECONDS
    )
    error = ""
    if own != names:
        other = sorted({name for several in own for name in several} ^ {name for several in names for name in several})
        _logger.warning(
            "%s: this worker has listed other files than worker 0, and reads those: %d names differ, such as %s",
            call,
            len(other),
            other[:3] or "in their order",
        )
        try:
            inputs = inputs.over_files(names)
        except StorageError as failure:
            member = control.member
            error = f"{member} {control.worker} cannot read the files that {member} 0 has listed: {failure}"
    failed = control.gather(f"{call}: files read", error, str, timeout=SETUP_SECONDS)
    if any(failed):
        raise StorageError(f"{call}: {next(filter(None, failed))}")
    return inputs


def _agreed(
    inputs: Inputs, cardinality: int, lengths: list[Lengths] | None, full: tuple[int, bool], *, same_layout: bool
) -> AgreedInput:
    if inputs.has_own_data and inputs.workers.count > 1 and cardinality != INFINITE_CARDINALITY:
        cardinality = inputs.steps_with_rows(lengths) if lengths else UNKNOWN_CARDINALITY
    return AgreedInput(inputs, cardinality, lengths, same_layout, *full)
