"""Arrays of strings and objects on their way between workers: threads are the workers, the sockets are real."""

import datetime
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.distribute.test_control import connected, errors, results

from penstock.distribute.jax import host_arrays
from penstock.distribute.jax.host_arrays import HostArray, from_all_workers


def objects(*values: Any) -> Any:
    return np.fromiter(values, object, len(values))


ARRAYS = [
    np.array([["a", "bbb"], ["", "\0c"]]),
    np.array([b"a", b"bb"]),
    np.array(["2020-01-01", "NaT"], "M8[ns]"),
    np.array([["a" * 40, ""]], np.dtypes.StringDType()),
    objects("a", b"\xff\0", None, 3, -1.5, True),
    objects(np.arange(3), np.ones((2, 0), ml_dtypes.bfloat16), objects("x", objects("y"))),
    objects(np.arange(2), np.arange(2)),
    np.empty((0, 2), object),
    np.empty(0, "U5"),
    np.arange(6.0).reshape(2, 3),
]


def check_equal(seen: Any, expected: Any) -> None:
    assert (seen.dtype, seen.shape) == (expected.dtype, expected.shape)
    for own, other in zip(seen.ravel().tolist(), expected.ravel().tolist(), strict=True):
        assert type(own) is type(other)
        if isinstance(own, np.ndarray):
            check_equal(own, other)
        else:
            assert own == other


@pytest.mark.parametrize("size", [7, 1 << 24])
def test_every_worker_gets_all_parts_in_the_workers_order(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(host_arrays, "_PIECE_BYTES", size)
    own = [ARRAYS, [np.array(["z"])], []]
    with connected(3) as controls:
        for seen in results(controls, lambda control: from_all_workers(control, "gather", own[control.worker])):
            assert len(seen) == len(ARRAYS) + 1
            for array, expected in zip(seen, [*ARRAYS, np.array(["z"])], strict=True):
                check_equal(array, expected)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (objects({"a": 1}, datetime.date(2020, 1, 1)), "objects of type date, dict"),
        (objects(np.zeros(1, "i4,i4")), "values of dtype"),
        (objects(1 << 70), "."),
    ],
)
def test_what_is_no_plain_data_is_refused_on_every_worker(array: Any, reason: str) -> None:
    own = [np.array(["a"]), array]
    with connected(2) as controls:
        said = errors(controls, lambda control: from_all_workers(control, "strategy.gather", [own[control.worker]]))
        assert said[0] == said[1]
        assert said[0].startswith(f"InvalidTypeError: strategy.gather got {reason.strip('.')}")
        assert "on worker 1: workers can send each other numbers, strings" in said[0]
        # The workers are still in step.
        assert results(controls, lambda control: len(from_all_workers(control, "x", [own[0]]))) == [2, 2]


def test_an_array_that_is_read_is_as_writable_as_any() -> None:
    array = HostArray.of(np.array(["ab"])).array()
    array[0] = "c"
    assert array.tolist() == ["c"]
