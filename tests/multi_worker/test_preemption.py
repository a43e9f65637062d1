"""SIGTERM before a machine is taken away: all workers save one checkpoint, at the same step."""

import re
import signal
from itertools import chain
from pathlib import Path

import forked
import pytest

ROWS = [row for row in range(96) if row % 3 != 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "first"), [("one_is_signalled", 3), ("all_are_signalled_at_other_steps", 2)], ids=["one", "all"]
)
def test_workers_saved_at_steps_of_their_own_and_waited_for_each_other(workers, case: str, first: int) -> None:
    ended = workers("preemption", case)
    assert ended.statuses == [0, 0], ended.errors
    seen = ended.of(case)
    # The other worker had asked at this step, perhaps at the next one too.
    assert len(seen[0]["before"]) == len(seen[1]["before"]) in (first + 1, first + 2)
    for part in ("before", "after"):
        seen[0][part] = [list(chain(*one, *other)) for one, other in zip(seen[0][part], seen[1][part], strict=True)]
    assert list(chain(*seen[0]["before"], *seen[0]["after"])) == ROWS


PROGRAM = """
import sys
import penstock as ps

strategy = ps.MultiWorkerMirroredStrategy()
steps = strategy.distribute_dataset(ps.Dataset.range(1200).batch(4))
with strategy.scope(), iter(steps) as iterator, ps.preemption() as preempted:
    total = 0
    checkpoint = ps.Checkpoint(iterator=iterator, total=total)
    newest = ps.latest_checkpoint("run")
    if newest is not None:
        total = int(checkpoint.restore(newest)["total"])
    for number, batch in enumerate(iterator):
        total += int(strategy.reduce("SUM", strategy.run(lambda rows: rows.sum(), args=(batch,))))
        if number == 3:
            print("begun", flush=True)
        if preempted.requested:
            checkpoint.save("run/ckpt", total=total)
            print("saved", number, total, flush=True)
            sys.exit(75)
    print("total", total)
"""


@pytest.mark.extended
def test_a_launcher_that_is_asked_to_end_gives_its_workers_the_time_to_save(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = ("-m", "penstock", "launch", "-n", "2", "--devices-per-worker", "1", str(program))
    process = forked.Forked(*command, pipes=("stdout", "stderr"), directory=tmp_path)
    begun: set[str] = set()
    while len(begun) < 2:  # gloo writes lines too
        line = process.stdout.readline()
        assert line, process.communicate()
        begun |= {line} & {"[0] begun\n", "[1] begun\n"}
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, errors
    saved = re.findall(r"\[\d\] saved (\d+) (\d+)", output)
    assert len(saved) == 2 and saved[0] == saved[1], output
    number, total = map(int, saved[0])
    assert total == sum(range(4 * (number + 1)))
    done = forked.run(*command, directory=tmp_path)
    totals = [line for line in sorted(done.stdout.splitlines()) if "total" in line]
    assert totals == [f"[{worker}] total {sum(range(1200))}" for worker in range(2)]
