"""Training under torchrun whose ranks and agents are killed: `elastic.py FOLDER [KIND STEP]...`.

KIND is "worker", whose process the last rank kills at that step, or "agent", with which it kills torchrun too. Once an
agent is gone, a group of one rank waits after two saved steps until the agent is back. Rank 0 says at the end whether
every row has come once, and how many ranks took the steps.
"""

import os
import signal
import sys
import time
from itertools import groupby
from pathlib import Path

import torch
import torch.distributed

import penstock as ps

ROWS, BATCH, SAVED_EVERY = 240, 8, 2


def main(folder: str, *given: str) -> None:
    run = Path(folder)
    kills = list(zip(given[::2], map(int, given[1::2]), strict=True))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo")
    rows = ps.Dataset.range(ROWS).shuffle(seed=3).filter(lambda _: True).batch(BATCH)
    drop = ps.InputOptions(partial_batch="drop")
    with ps.torch.loader(rows, input_options=drop) as loader:
        seen: list[int] = []
        groups: list[int] = []
        if (run / "saved").exists():
            saved = torch.load(run / "saved", weights_only=False)
            seen, groups = saved["seen"], saved["groups"]
            loader.load_state_dict(saved["loader"])
        alone = 0
        for batch in loader:
            parts: list[list[int]] = [[]] * ranks
            torch.distributed.all_gather_object(parts, batch.tolist())
            seen, groups = [*seen, *(row for part in parts for row in part)], [*groups, ranks]
            if len(groups) % SAVED_EVERY == 0 and rank == 0:
                torch.save({"seen": seen, "groups": groups, "loader": loader.state_dict()}, run / "new")
                os.replace(run / "new", run / "saved")
            torch.distributed.barrier()
            for kind, step in kills:
                if len(groups) == step and rank == ranks - 1 == 1 and not (run / f"{kind} {step}").exists():
                    (run / f"{kind} {step}").touch()
                    if kind == "agent":
                        os.kill(os.getppid(), signal.SIGKILL)
                    os.kill(os.getpid(), signal.SIGKILL)
            alone += ranks == 1
            if alone == 2 * SAVED_EVERY:
                (run / "alone").touch()
                while True:  # torchrun ends this rank to begin a group of two
                    time.sleep(1)
    if rank == 0:
        ranks_of_steps = " ".join(str(number) for number, _ in groupby(groups))
        sys.stdout.write(f"{sorted(seen) == [*range(ROWS)]} {ranks_of_steps}\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
