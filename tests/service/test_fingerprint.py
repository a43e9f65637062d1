"""By what datasets are known again: the same in every process, and another one for another dataset."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.data.fingerprint import fingerprint
from penstock.service.wire.definitions import to_bytes

# What a user's script holds: sets, whose order is another one in every process, and classes of the main program.
SCRIPT = """
import dataclasses
import enum
import numpy as np
import penstock as ps
from penstock.service.wire.definitions import to_bytes
from penstock.data.fingerprint import fingerprint

STOP_WORDS = {"and", "or", "the", "of", "to", "in"}

@dataclasses.dataclass
class Pair:
    left: int
    right: float = 0.5

class Side(enum.Enum):
    LEFT = 1

class Scale:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, x):
        return super().__repr__() and x * self.factor

def literal(x):
    return str(x) in {"and", "or", "the", "of"}

functions = [lambda x: str(x) in STOP_WORDS, literal, lambda x: Pair(int(x)), Scale(3), lambda x: Side.LEFT.value]
for function in functions:
    dataset = ps.Dataset.from_tensor_slices(np.arange(9)).map(function).batch(2)
    to_bytes(dataset.node, dataset.options())
    print(fingerprint((dataset.node, dataset.options())))
"""


def of(dataset: ps.Dataset) -> str:
    return fingerprint((dataset.node, dataset.options()))


@pytest.mark.extended
def test_readers_in_two_processes_seemed_to_read_different_datasets(tmp_path: Path) -> None:
    found = []
    # The second one stands elsewhere, by a few lines too, as after a change to what is above.
    for seed, folder, above in (("1", "one", ""), ("2", "two", "# changed\n\n")):
        (tmp_path / folder).mkdir()
        script = tmp_path / folder / f"{folder}.py"
        script.write_text(above + SCRIPT)
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        found.append(done.stdout.split())
    assert found[0] == found[1]
    assert len(set(found[0])) == 5


def test_one_dataset_made_on_two_lines_is_one() -> None:
    first = ps.Dataset.range(5).map(lambda x: x + 1)
    second = ps.Dataset.range(5).map(lambda x: x + 1)
    assert of(first) == of(second)
    assert to_bytes(first.node, first.options()) != to_bytes(second.node, second.options())


def test_what_was_drawn_by_chance_makes_no_other_dataset() -> None:
    def frozen() -> ps.Dataset:
        return ps.Dataset.range(5).shuffle(5, reshuffle_each_iteration=False)

    assert of(frozen()) == of(frozen()) != of(ps.Dataset.range(5).shuffle(5))


def test_whatever_changes_the_elements_changes_the_fingerprint() -> None:
    def times(factor: object) -> ps.Dataset:
        return ps.Dataset.range(5).map(lambda x: x * factor)

    base = ps.Dataset.from_tensor_slices(np.arange(4))
    others = [
        base,
        ps.Dataset.from_tensor_slices(np.arange(4) + 1),
        ps.Dataset.from_tensor_slices(np.arange(4, dtype=np.int32)),
        base.shuffle(4),
        base.shuffle(4, seed=1),
        base.with_options(ps.Options(seed=1)),
        times(2),
        times(3),
        times({"a"}),
        times({"b"}),
        ps.Dataset.range(5).map(lambda x: x + 2),
        ps.Dataset.range(5).filter(lambda x: x in {1, 2}),
        ps.Dataset.range(5).filter(lambda x: x in {1, 3}),
        ps.Dataset.range(2).flat_map(lambda x: base),
        ps.Dataset.range(2).flat_map(lambda x: times(2)),
    ]
    assert len({of(dataset) for dataset in others}) == len(others)
