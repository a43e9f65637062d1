"""What the workers of a distributed dataset agree on before its first epoch: files, seeds, lengths."""

import itertools
import logging
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.data.contents import NodeFacts
from penstock.data.listed_names import digest_of_names
from penstock.distribute.control.channel import CALL_SECONDS, Control
from penstock.distribute.control.messages import WorkerInput
from penstock.distribute.feed.inputs import Inputs, Lengths, longest
from penstock.errors import StorageError, WorkerError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, AutoShardPolicy
from penstock.rng import draw_seed

_WHOLE = "Give every {} the whole dataset, of which each then gets its part"
_OWN_DATASETS = "ps.Options(auto_shard_policy=ps.AutoShardPolicy.OFF)"
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
    facts = (inputs.labels, inputs.facts(), inputs.workers.share)
    own = WorkerInput(*facts, draw_seed(), inputs.drawn, cardinality, known_lengths, layout, listed, full)
    answers = control.gather(call, own, WorkerInput, timeout=CALL_SECONDS)
    others = [one.listed for one in answers]
    if any(one != others[0] for one in others) and len(set(map(len, others))) == 1:
        return agree_on_input(call, _over_files_of_the_first(call, inputs, control), control)
    _check_same_dataset(call, control.member, answers)
    inputs.fix_seeds(answers[0].seed, answers[0].drawn)
    counted = [Lengths(*one.lengths) for one in answers if one.lengths]
    most = longest([one.cardinality for one in answers])
    same_layout = layout is not None and all(one.leaves == layout for one in answers)
    if any(one.full_rows != full for one in answers):
        full = 0, False
    return _agreed(inputs, most, counted if len(counted) == len(answers) else None, full, same_layout=same_layout)


def _check_same_dataset(call: str, member: str, answers: list[WorkerInput]) -> None:
    """Refuse datasets that differ; under AutoShardPolicy.OFF between workers that read the same share."""
    apart = f"policy {AutoShardPolicy.OFF.name}" in answers[0].labels
    first_with: dict[int, int] = {}
    for worker, answer in enumerate(answers):
        other = first_with.setdefault(answer.share if apart else 0, worker)
        difference = _difference(answers[0].labels, answer.labels) or _difference(answers[other].nodes, answer.nodes)
        if difference is not None:
            own = "distribute_datasets_from_function" if call.startswith("distribute") else _OWN_DATASETS
            raise WorkerError(
                f"{call}: the {member}s distribute different datasets: {difference[0]} on {member} {other} is "
                f"{difference[1]} on {member} {worker}. {_WHOLE.format(member)}; if each shall read all of a dataset "
                f"of its own, say so by {own}"
            )


def _difference(first: Sequence[str | NodeFacts], other: Sequence[str | NodeFacts]) -> tuple[str, str] | None:
    """The first of two labels, or facts of nodes, that differ."""
    for one, another in itertools.zip_longest(first, other, fillvalue="nothing"):
        if one != another and not (isinstance(one, NodeFacts) and one.is_as(another)):
            return str(one), str(another) if str(one) != str(another) else f"{another} with other data or code"
    return None


def _few(listed: list[list[str]]) -> str:
    """The names of files, shortly."""
    return reprlib.repr([name for several in listed for name in several])


def _over_files_of_the_first(call: str, inputs: Inputs, control: Control) -> Inputs:
    """The inputs over the files that worker 0 has listed.

    If files are added or deleted meanwhile, the workers may have listed different ones.

    Raises:
        StorageError: a worker cannot read one of them; the same on every worker.
        WorkerError: a worker has listed hardly any of them.
    """
    own = inputs.listed
    (names, *_) = control.gather(
        f"{call}: files", own if control.worker == 0 else [], list[list[str]], timeout=CALL_SECONDS
    )
    unread = others = ""
    if own != names:
        mine, first = ({name for several in listed for name in several} for listed in (own, names))
        if 2 * len(mine & first) < max(len(mine), len(first)):
            several = [
                f"{control.member} 0 has listed {_few(names)}",
                f"{control.member} {control.worker} has listed {_few(own)}",
            ]
            others = f"different datasets: {' and '.join(several)}. {_WHOLE.format(control.member)}"
        _logger.warning(
            "%s: this worker has listed other files than worker 0, and reads those: %d names differ, such as %s",
            call,
            len(mine ^ first),
            sorted(mine ^ first)[:3] or "in their order",
        )
        try:
            inputs = inputs if others else inputs.over_files(names)
        except StorageError as failure:
            member = control.member
            unread = f"{member} {control.worker} cannot read the files that {member} 0 has listed: {failure}"
    failed = control.gather(f"{call}: files read", (others, unread), tuple[str, str], timeout=CALL_SECONDS)
    for different, unreadable in failed:
        if different:
            raise WorkerError(f"{call}: {different}")
        if unreadable:
            raise StorageError(f"{call}: {unreadable}")
    return inputs


def _agreed(
    inputs: Inputs, cardinality: int, lengths: list[Lengths] | None, full: tuple[int, bool], *, same_layout: bool
) -> AgreedInput:
    if inputs.has_own_data and inputs.workers.count > 1 and cardinality != INFINITE_CARDINALITY:
        cardinality = inputs.steps_with_rows(lengths) if lengths else UNKNOWN_CARDINALITY
    return AgreedInput(inputs, cardinality, lengths, same_layout, *full)
