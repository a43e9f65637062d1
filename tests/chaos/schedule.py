"""What is read in a trial, and what breaks when: all of it drawn from one seed."""

import random
from dataclasses import dataclass

MODES = ("ordered", "unordered", "shared", "parallel_epochs", "static", "coordinated", "cross_trainer")

_SHAPES = {
    "ordered": ("rows", "shuffled", "groups", "sequence", "batches"),
    "unordered": ("rows", "shuffled", "groups", "batches"),
    "shared": ("rows", "shuffled", "groups"),
    "parallel_epochs": ("rows", "groups", "sequence"),
    "static": ("rows", "groups"),
    "coordinated": ("rows", "groups"),
    "cross_trainer": ("rows", "groups"),
}


SHORT_TIMES = {"heartbeat_seconds": 0.2, "lease_seconds": 1.5}
DEFAULT_TIMES = {"heartbeat_seconds": 2.0, "lease_seconds": 10.0}
_LONGER = 6
"""How many times longer things last with the default times."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        at: seconds after the trainers were started.
        what: "kill", "stop" or "add"; "terminate" sends SIGTERM, "roll" does so to all workers in turn, and "fill" lets
            the dispatcher's disk be full; in a network "cut" takes all of it from a machine, and "lose" lets what the
            trainers send to a worker reach nobody.
        role: "worker", "trainer" or "dispatcher".
        index: which of them, by the order in which they were started, modulo their number.
        seconds: until another one takes its place, or until it goes on.
    """

    at: float
    what: str
    role: str
    index: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:.2f}s {self.what} {self.role} {self.index} for {self.seconds:.2f}s"


@dataclass(frozen=True)
class Schedule:
    """One trial.

    Attributes:
        protocol: how blocks come.
        network: whether every process has a machine of its own, which can be cut off.
        times: the dispatcher's.
        returns: how a trainer comes back that was killed: from its "newest" checkpoint or from the "older" one; of a
            shared job also "anew", as another one.
        paces: seconds that each trainer takes for a row; of a shared job they differ.
        idle: seconds for which the first trainer does nothing after its first element.
    """

    seed: int
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


def draw(seed: int, *, dispatcher: bool, network: bool, faults: int | None, default_times: bool) -> Schedule:
    """The schedule of a seed.

    Args:
        dispatcher: whether something may happen to it too.
        network: whether machines may be cut off.
        faults: how many there are; None draws that too.
        default_times: the dispatcher has the times that it has without settings, and what breaks is broken for longer.
    """
    rng = random.Random(seed)
    mode = MODES[seed % len(MODES)]
    trainers = {"shared": rng.randint(2, 3), "coordinated": 2, "cross_trainer": 2}.get(mode, 1)
    workers = rng.randint(1, 3)
    count = rng.randint(1, 5)
    longer = _LONGER if default_times else 1
    drawn = sorted(
        (_fault(rng, dispatcher, network, longer) for _ in range(faults or count)), key=lambda fault: fault.at
    )
    return Schedule(
        seed=seed,
        mode=mode,
        shape=rng.choice(_SHAPES[mode]),
        elements=6 * rng.randint(80, 230) * (longer // 2 or 1),
        workers=workers,
        trainers=trainers,
        protocol="flight" if network else rng.choice(("shared_memory", "flight")),
        faults=tuple(drawn),
        network=network,
        times=DEFAULT_TIMES if default_times else SHORT_TIMES,
        returns=rng.choice(("anew", "newest", "older")) if mode == "shared" else "newest",
        paces=tuple(rng.choice((0.0, 0.0, 0.002, 0.01)) if mode == "shared" else 0.0 for _ in range(trainers)),
        idle=rng.choice((0.0, 0.0, 1.0)) if mode == "shared" else 0.0,
    )


def _fault(rng: random.Random, dispatcher: bool, network: bool, longer: int) -> Fault:
    kinds = [("kill", "worker")] * 4 + [("stop", "worker")] * 2 + [("add", "worker"), ("kill", "trainer")]
    kinds += [("kill", "trainer"), ("stop", "trainer")]
    if dispatcher:
        kinds += [("kill", "dispatcher"), ("kill", "dispatcher"), ("stop", "dispatcher")]
    if not network:
        kinds += [("terminate", "worker")] * 2 + [("roll", "worker")]
        kinds += [("terminate", "dispatcher"), ("fill", "dispatcher")] if dispatcher else []
    if network:
        kinds += [("cut", "worker")] * 4 + [("cut", "trainer")] * 3 + [("lose", "worker")] * 3
        kinds += [("cut", "dispatcher")] * 3 if dispatcher else []
    what, role = rng.choice(kinds)
    at, index, seconds = rng.uniform(0.0, 1.5), rng.randrange(6), rng.choice((0.0, rng.uniform(0.1, 1.2), 2.5))
    return Fault(at, what, role, index, seconds * longer)
