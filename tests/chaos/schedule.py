"""What is read in a trial, and what breaks when: all of it drawn from one seed."""

import random
from dataclasses import dataclass, replace

MODES = ("ordered", "unordered", "shared", "parallel_epochs", "static", "coordinated", "cross_trainer")

_SHAPES = {
    "ordered": ("rows", "shuffled", "groups", "sequence", "batches", "mixed", "packed"),
    "unordered": ("rows", "shuffled", "groups", "batches", "mixed", "packed"),
    "shared": ("rows", "shuffled", "groups", "mixed"),
    "parallel_epochs": ("rows", "groups", "sequence", "mixed"),
    "static": ("rows", "groups", "packed"),
    "coordinated": ("rows", "groups"),
    "cross_trainer": ("rows", "groups"),
}

_OF_SHARED_JOBS = ("idle", "slow")
"""Kinds that concern only readers who share their elements."""

SHORT_TIMES = {"heartbeat_seconds": 0.2, "lease_seconds": 1.5}
DEFAULT_TIMES = {"heartbeat_seconds": 2.0, "lease_seconds": 10.0}
_PASSES = 120
"""A multiple of each number of passes that there may be, also where a pass has every second element."""
_LONGER = 6
"""How many times longer things last with the default times."""


@dataclass(frozen=True)
class Damage:
    """What happens to a journal while its dispatcher is down.

    Attributes:
        what: "flip" changes a bit, "halve" leaves the first half of a file, and "remove" nothing.
        file: which of the journal's.
        place: of the bit, as a part of the file.
        remedy: what is done where the dispatcher refuses to go on: "copy" brings the journal back as it was, "anew"
            begins another one.
    """

    what: str
    file: str
    place: float
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.file}, {self.remedy}"


_DAMAGES = (
    ("flip", "journal.sqlite-wal"),
    ("halve", "journal.sqlite-wal"),
    ("remove", "journal.sqlite-wal"),
    ("flip", "journal.sqlite"),
    ("remove", "journal.sqlite"),
    ("flip", "journal.mark"),
    ("remove", "journal.mark"),
)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        at: seconds after all trainers were ready to read.
        what: "kill", "stop" or "add"; "terminate" sends SIGTERM, "roll" does so to all workers in turn, and "fill" lets
            the dispatcher's disk be full; "knock" lets strangers connect who say nothing, half of what they should, or
            a byte now and then; "damage" kills the dispatcher and spoils its journal before it is started again;
            "version" lets a worker or a trainer of another version come, or puts a dispatcher of another version in the
            place of the right one; in a network "cut" takes all of it from a machine, and "lose" lets what the trainers
            send to a worker reach nobody.
        role: "worker", "trainer" or "dispatcher".
        index: which of them, by the order in which they were started, modulo their number.
        seconds: until another one takes its place, or until it goes on.
        damage: of "damage".
        newer: of "version": by how much its protocol's number is higher.
    """

    at: float
    what: str
    role: str
    index: int = 0
    seconds: float = 0.0
    damage: Damage | None = None
    newer: int = 0

    def __str__(self) -> str:
        more = f" ({self.damage})" if self.damage else f" ({self.newer:+})" if self.newer else ""
        return f"{self.at:.2f}s {self.what} {self.role} {self.index} for {self.seconds:.2f}s{more}"


@dataclass(frozen=True)
class Schedule:
    """One trial.

    Attributes:
        kind: what it is drawn for; "" for nothing special.
        protocol: how blocks come.
        network: whether every process has a machine of its own, which can be cut off.
        times: the dispatcher's.
        returns: how a trainer comes back that was killed: from its "newest" checkpoint or from the one before it
            ("older"); of a shared job also "anew", as another one.
        paces: seconds that each trainer takes for a row; of a shared job they differ.
        idle: seconds for which the first trainer does nothing after its first element.
    """

    seed: int
    kind: str
    mode: str
    shape: str
    elements: int
    workers: int
    trainers: int
    protocol: str
    faults: tuple[Fault, ...]
    network: bool
    times: dict[str, float]
    returns: str
    paces: tuple[float, ...]
    idle: float

    def __str__(self) -> str:
        who = f"{self.mode} {self.shape}, {self.workers} workers, {self.trainers} trainers, {self.protocol}"
        who += f", back {self.returns}"
        if self.mode == "shared":
            who += f", {'/'.join(f'{1000 * pace:g}' for pace in self.paces)} ms a row, idle {self.idle:g} s"
        return f"{who}: {'; '.join(map(str, self.faults))}"


def kinds(*, dispatcher: bool, network: bool) -> tuple[str, ...]:
    """What every trial of a run has one of, in turn; "" for whatever is drawn."""
    found = ["", "add", "terminate", "roll", "older", "idle", "slow", "version", "stop", "knock"]
    found += ["forks", "refuses", "prints"]
    found += ["fill", "damage"] if dispatcher else []
    found += ["cut", "lose"] if network else []
    return tuple(found)  # never a multiple of 7, so that each of them meets every mode


def draw(seed: int, *, dispatcher: bool, network: bool, faults: int | None, default_times: bool) -> Schedule:
    """The schedule of a seed.

    Args:
        dispatcher: whether something may happen to it too.
        network: whether machines may be cut off.
        faults: how many there are; None draws that too.
        default_times: the dispatcher has the times that it has without settings, and what breaks is broken for longer.
    """
    rng = random.Random(seed)
    turns = kinds(dispatcher=dispatcher, network=network)
    kind = turns[seed % len(turns)]
    mode = _mode(seed, kind)
    trainers = {"shared": rng.randint(2, 3), "coordinated": 2, "cross_trainer": 2}.get(mode, 1)
    longer = _LONGER if default_times else 1
    count = faults or rng.randint(1, 5)
    possible = _possible(dispatcher, network)
    drawn = [_fault(rng, possible, longer) for _ in range(count - 1)]
    drawn.append(_fault(rng, _of_kind(kind, possible), longer, latest=0.7))  # before anybody has read all
    return Schedule(
        seed=seed,
        kind=kind,
        mode=mode,
        shape=rng.choice(_SHAPES[mode]),
        elements=_elements(rng, mode) * (longer // 2 or 1),
        workers=rng.randint(1, 3),
        trainers=trainers,
        protocol="flight" if network else rng.choice(("shared_memory", "flight")),
        faults=tuple(sorted(drawn, key=lambda fault: fault.at)),
        network=network,
        times=DEFAULT_TIMES if default_times else SHORT_TIMES,
        returns=_returns(rng, kind, mode),
        paces=_paces(rng, kind, trainers) if mode == "shared" else (0.0,) * trainers,
        idle=rng.choice((0.0, 0.0, 1.0) if kind != "idle" else (1.0, 2.0)) if mode == "shared" else 0.0,
    )


def _elements(rng: random.Random, mode: str) -> int:
    elements = 6 * rng.randint(80, 230)
    # A reader may get more than an epoch of one pass: each pass begins anew with its own elements then.
    return elements // _PASSES * _PASSES if mode == "cross_trainer" else elements


def _mode(seed: int, kind: str) -> str:
    mode = MODES[seed % len(MODES)]
    if kind in _OF_SHARED_JOBS:
        return "shared"
    # What an older state asks for may have left the window.
    return "shared" if kind == "older" and mode == "cross_trainer" else mode


def _returns(rng: random.Random, kind: str, mode: str) -> str:
    if kind == "older":
        return "older"
    return rng.choice(("anew", "newest", "older")) if mode == "shared" else "newest"


def _paces(rng: random.Random, kind: str, trainers: int) -> tuple[float, ...]:
    """Seconds that each trainer takes for a row."""
    others = [rng.choice((0.0, 0.0, 0.002, 0.01)) for _ in range(trainers - 1)]
    return (*others, 0.01 if kind == "slow" else rng.choice((0.0, 0.0, 0.002)))


_Possible = list[tuple[str, str]]


def _possible(dispatcher: bool, network: bool) -> _Possible:
    """What may break, as often as it is to be drawn."""
    found = [("kill", "worker")] * 4 + [("stop", "worker")] * 2 + [("add", "worker")]
    found += [("kill", "trainer")] * 2 + [("stop", "trainer")]
    found += [("terminate", "worker")] * 2 + [("roll", "worker"), ("version", "worker"), ("version", "trainer")]
    if dispatcher:
        found += [("kill", "dispatcher")] * 2 + [("stop", "dispatcher"), ("terminate", "dispatcher")]
        found += [("fill", "dispatcher"), ("damage", "dispatcher"), ("version", "dispatcher")]
    if not network:  # from elsewhere nobody reaches it there
        found += [("knock", "dispatcher"), ("knock", "worker")]
    if network:
        found += [("cut", "worker")] * 4 + [("cut", "trainer")] * 3 + [("lose", "worker")] * 3
        found += [("cut", "dispatcher")] * 3 if dispatcher else []
    return found


def _of_kind(kind: str, possible: _Possible) -> _Possible:
    """Those that make a trial one of that kind; all where it is something else that does."""
    if kind == "older":
        return [("kill", "trainer")]
    if kind == "forks":  # what the worker had open stays open
        return [("kill", "worker")]
    return [(what, role) for what, role in possible if what == kind] or possible


def _fault(rng: random.Random, possible: _Possible, longer: int, latest: float = 1.5) -> Fault:
    what, role = rng.choice(possible)
    fault = Fault(
        at=rng.uniform(0.0, latest),
        what=what,
        role=role,
        index=rng.randrange(6),
        seconds=rng.choice((0.0, rng.uniform(0.1, 1.2), 2.5)) * longer,
    )
    if what == "damage":
        damage = Damage(*rng.choice(_DAMAGES), place=rng.random(), remedy=rng.choice(("copy", "anew")))
        return replace(fault, damage=damage)
    if what == "version":  # never the same one of those who come and of the dispatcher that they may meet
        return replace(fault, newer=rng.choice((-2, 2) if role == "dispatcher" else (-1, 1)))
    return fault
