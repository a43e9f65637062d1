"""What a process does with memory that it has freed: counted in pages that the system had to map."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep it as they like")

_FOUR_MESSAGES_TWICE = """
import resource
from penstock.runtime.memory_thresholds import keep_freed_memory

keep = {keep}
if keep:
    keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    messages = [b"x" * (16 << 20) for _ in range(4)]
    del messages
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() >> 20)
"""


def mebibytes_mapped_again(*, keep: bool, **environment: str) -> int:
    """Of 64 MiB that are taken and freed a second time, how much the system mapped anew."""
    said = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    script = _FOUR_MESSAGES_TWICE.format(keep=keep)
    ended = subprocess.run(
        [sys.executable, "-c", script], env=said | environment, capture_output=True, text=True, check=True
    )
    return int(ended.stdout)


@pytest.mark.extended
def test_memory_that_was_freed_is_used_again() -> None:
    assert mebibytes_mapped_again(keep=False) > 48
    assert mebibytes_mapped_again(keep=True) < 4


@pytest.mark.slow
def test_what_the_environment_says_stays() -> None:
    assert mebibytes_mapped_again(keep=True, MALLOC_TRIM_THRESHOLD_="131072") > 48


_GATHERED = """
import resource
import numpy as np
import penstock as ps

dataset = ps.Dataset.from_tensor_slices(np.zeros((2_000, 12_288), np.float32)).shuffle(seed=1).batch(64)
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in dataset:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() >> 20)
"""


def mebibytes_mapped_by_an_epoch(**environment: str) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", _GATHERED], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return int(ended.stdout)


@pytest.mark.extended
def test_batches_of_three_mebibytes_are_in_memory_of_those_before_them() -> None:
    assert mebibytes_mapped_by_an_epoch() < 2
    assert mebibytes_mapped_by_an_epoch(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 48
