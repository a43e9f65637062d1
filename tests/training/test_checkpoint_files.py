"""Where checkpoints lie: which is the newest, which are kept, and directories that other processes change."""

import itertools
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import orbax.checkpoint as ocp
import pytest

import penstock as ps
from penstock.training.checkpoint.folders import INDEX_FILE, UNFINISHED


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.slow
def test_the_newest_of_a_prefix_is_found(tmp_path: Path) -> None:
    for name in ("ckpt", "ckpt", "other"):
        ps.Checkpoint(x=1).save(tmp_path / name, x=1)
    assert ps.latest_checkpoint(tmp_path / "ckpt") == f"{tmp_path}/ckpt-2"
    assert ps.latest_checkpoint(f"file://{tmp_path}/ckpt") == f"{tmp_path}/ckpt-2"
    assert ps.latest_checkpoint(tmp_path) == f"{tmp_path}/other-1"
    assert ps.latest_checkpoint(tmp_path / "nothing" / "ckpt") is None


def test_none_means_that_there_is_none_and_nothing_else(tmp_path: Path) -> None:
    path = ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=1)
    (tmp_path / "file").touch()
    with pytest.raises(ps.InvalidArgumentError, match="takes a directory of checkpoints, got .*which is one itself"):
        ps.latest_checkpoint(path)
    with pytest.raises(ps.StorageError, match="takes a directory of checkpoints, got the file"):
        ps.latest_checkpoint(tmp_path / "file")
    with pytest.raises(ps.StorageError, match="cannot be read: .*Not a directory"):
        ps.latest_checkpoint(tmp_path / "file" / "ckpt")
    with pytest.raises(ps.InvalidTypeError, match="takes a path, got None"):
        ps.latest_checkpoint(None)  # type: ignore[arg-type]
    with pytest.raises(ps.InvalidArgumentError, match="a protocol that fsspec does not know"):
        ps.latest_checkpoint("nowhere://a/b")


@pytest.mark.slow
def test_the_newest_is_found_beside_a_writer_that_keeps_one(tmp_path: Path) -> None:
    ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=0)
    done = threading.Event()

    def write() -> None:  # as a save with max_to_keep=1 does, but faster
        for number in itertools.count(1):
            shutil.copytree(tmp_path / f"ckpt-{number}", tmp_path / f"ckpt-{number + 1}{UNFINISHED}")
            (tmp_path / f"ckpt-{number + 1}{UNFINISHED}").rename(tmp_path / f"ckpt-{number + 1}")
            (tmp_path / f"ckpt-{number}").rename(tmp_path / f"ckpt-{number}{UNFINISHED}")
            shutil.rmtree(tmp_path / f"ckpt-{number}{UNFINISHED}")
            if done.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    found: list[str | None] = []
    try:
        while writer.is_alive() and (len(found) < 500 or len(set(found)) < 10):
            found.append(ps.latest_checkpoint(tmp_path))
    finally:
        done.set()
        writer.join()
    assert None not in found
    assert len(set(found)) >= 10


def test_a_checkpoint_deleted_while_it_is_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=1)

    def delete(*_: Any, **__: Any) -> None:
        shutil.rmtree(path)
        raise FileNotFoundError("arrays")

    monkeypatch.setattr(ocp.Checkpointer, "restore", delete)
    with pytest.raises(ps.StorageError, match=f"checkpoint {path} was deleted while it was read: ps.latest_checkpoint"):
        ps.Checkpoint(x=1).restore(path)


@pytest.mark.slow
def test_a_checkpoint_that_was_moved_away_and_linked_back_breaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    checkpoint = ps.Checkpoint(x=1, max_to_keep=1)
    path = Path(checkpoint.save(tmp_path / "run" / "ckpt", x=7))
    path.rename(tmp_path / "archived")
    path.symlink_to(tmp_path / "archived")
    assert checkpoint.restore(ps.latest_checkpoint(tmp_path / "run")) == {"x": 7}
    (tmp_path / "run" / f"ckpt-9{UNFINISHED}").symlink_to(tmp_path / "archived")
    (tmp_path / "run" / "ckpt-8").symlink_to(tmp_path / "gone")
    checkpoint.save(tmp_path / "run" / "ckpt", x=8)
    assert names(tmp_path / "run") == ["ckpt-8", "ckpt-9"]
    assert ps.Checkpoint(x=1).restore(tmp_path / "archived") == {"x": 7}


@pytest.mark.slow
def test_the_step_is_the_number(tmp_path: Path) -> None:
    checkpoint = ps.Checkpoint(x=1)
    assert checkpoint.save(tmp_path / "ckpt", step=40, x=1) == f"{tmp_path}/ckpt-40"
    assert checkpoint.save(tmp_path / "ckpt", step=np.int64(8), x=1) == f"{tmp_path}/ckpt-8"
    assert checkpoint.save(tmp_path / "ckpt", x=1) == f"{tmp_path}/ckpt-41"
    (tmp_path / "ckpt-7").mkdir()
    with pytest.raises(ps.StorageError, match=f"{tmp_path}/ckpt-7 is there already, and is no checkpoint: delete it"):
        checkpoint.save(tmp_path / "ckpt", step=7, x=1)
    for no_number in (1.5, True, "8"):
        with pytest.raises(ps.InvalidTypeError, match=f"takes a whole number, got {no_number!r}"):
            checkpoint.save(tmp_path / "ckpt", step=no_number, x=1)
    with pytest.raises(ps.InvalidArgumentError, match="must be at least 0, got -1"):
        checkpoint.save(tmp_path / "ckpt", step=-1, x=1)
    with_step = ps.Checkpoint(step=0)
    assert with_step.restore(with_step.save(tmp_path / "ckpt", step=100)) == {"step": 100}
    assert ps.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-100"
    values = {"step": {"epoch": 3}, "metric": [0.5, 0.25]}  # which are no numbers, and so neither its step nor metric
    path = ps.Checkpoint(step={"epoch": 0}, metric=[0.0, 0.0]).save(tmp_path / "ckpt", **values)
    assert path == f"{tmp_path}/ckpt-101"
    assert ps.Checkpoint(step={"epoch": 0}, metric=[0.0, 0.0]).restore(path) == values


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_can_be_saved_again_after_going_back(
    tmp_path: Path, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for place in (str(tmp_path), f"memory://{tmp_path.name}-{asynchronous}"):
        prefix = f"{place}/ckpt"
        with ps.Checkpoint(x=0, max_to_keep=3, asynchronous=asynchronous) as checkpoint:
            paths = [checkpoint.save(prefix, step=step, metric=1.0, x=step) for step in (10, 20, 30)]
            assert checkpoint.restore(paths[0]) == {"x": 10}
            assert not caplog.records
            for step in (15, 20):
                path = checkpoint.save(prefix, step=step, metric=2.0, x=-step)
                assert checkpoint.restore(path) == {"x": -step}
                assert f"{path} is saved, and there is one with a higher number, 30" in caplog.messages[-1]
            assert ps.latest_checkpoint(prefix) == f"{prefix}-30"
            assert ps.training.best_checkpoint(prefix, "max") == f"{prefix}-20"
            checkpoint.save(prefix, step=30, metric=3.0, x=-30)
            checkpoint.wait()
            assert ps.latest_checkpoint(prefix) == ps.training.best_checkpoint(prefix, "max") == f"{prefix}-30"
            assert checkpoint.restore(f"{prefix}-30") == {"x": -30}
            caplog.clear()
    assert names(tmp_path) == ["ckpt-15", "ckpt-20", "ckpt-30"]
    assert fsspec.filesystem("memory").glob(f"/{tmp_path.name}-{asynchronous}/*") == [
        f"/{tmp_path.name}-{asynchronous}/ckpt-{step}" for step in (15, 20, 30)
    ]


class Killed(BaseException):
    """As a signal that cannot be caught: what comes after it is not done any more."""


def killed_at(patch: pytest.MonkeyPatch, owners: dict[str, Any], number: int) -> None:
    """Let these functions raise `Killed` from the call with this number on, before they do anything.

    Files that are not an index do not count: checkpoints that lack some of them are all alike.
    """
    calls = iter([False] * (number - 1))

    def fatal(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if (function.__name__ != "put_file" or arguments[1].endswith(INDEX_FILE)) and next(calls, True):
                raise Killed
            return function(*arguments, **keywords)

        return call

    for name, owner in owners.items():
        patch.setattr(owner, name, fatal(getattr(owner, name)))


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_kill_while_a_checkpoint_is_replaced_leaves_the_old_or_the_new(tmp_path: Path, remote: bool) -> None:
    system = fsspec.filesystem("memory")
    owners = {"put_file": system, "rm_file": system, "rm": system} if remote else {"rename": Path, "rmtree": shutil}
    seen = []
    for number in itertools.count(1):
        place = f"memory://{tmp_path.name}-{number}" if remote else f"{tmp_path}/{number}"
        checkpoint = ps.Checkpoint(x=0)
        path = checkpoint.save(f"{place}/ckpt", step=3, metric=0, x=0)
        try:
            with pytest.MonkeyPatch.context() as patch:
                killed_at(patch, owners, number)
                checkpoint.save(f"{place}/ckpt", step=3, metric=1, x=1)
        except (Killed, ps.StorageError):
            checkpoint = ps.Checkpoint(x=0)  # that of the next process
            seen.append(checkpoint.restore(path)["x"])
            assert ps.latest_checkpoint(place) == ps.latest_checkpoint(f"{place}/ckpt") == path
            assert ps.training.best_checkpoint(place, "max") == path
            checkpoint.save(f"{place}/ckpt", step=4, metric=2, x=2)
            assert checkpoint.restore(path)["x"] == seen[-1]
            checkpoint.save(f"{place}/ckpt", step=3, metric=3, x=3)
            assert checkpoint.restore(path)["x"] == 3
            left = system.glob(f"/{tmp_path.name}-{number}/*") if remote else names(tmp_path / str(number))
            assert [name.rpartition("/")[2] for name in left] == ["ckpt-3", "ckpt-4"]
        else:
            break
    assert seen == sorted(seen)
    assert set(seen) == {0, 1}


@pytest.mark.slow
def test_a_checkpoint_that_was_replaced_while_it_was_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"w": np.zeros(3)}
    path = ps.Checkpoint(values=values).save(tmp_path / "ckpt", step=1, values=values)
    read = ocp.Checkpointer.restore

    def replace(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.setattr(ocp.Checkpointer, "restore", read)
        ps.Checkpoint(values=values).save(tmp_path / "ckpt", step=1, values={"w": np.ones(3)})
        return read(*arguments, **keywords)

    monkeypatch.setattr(ocp.Checkpointer, "restore", replace)
    np.testing.assert_array_equal(ps.Checkpoint(values=values).restore(path)["values"]["w"], [1, 1, 1])


@pytest.mark.slow
def test_every_nth_is_kept(tmp_path: Path) -> None:
    checkpoint = ps.Checkpoint(x=1, max_to_keep=2, keep_every_n=4)
    for step in range(3, 12):
        checkpoint.save(tmp_path / "ckpt", step=step, x=1)
    assert names(tmp_path) == ["ckpt-10", "ckpt-11", "ckpt-4", "ckpt-8"]


@pytest.mark.slow
def test_the_best_by_a_metric_are_kept_and_found(tmp_path: Path) -> None:
    checkpoint = ps.Checkpoint(metric=0.0, max_to_keep=2, best="min")
    for loss in (0.5, 0.2, float("nan"), 0.1, 0.4, 0.3):
        checkpoint.save(tmp_path / "ckpt", metric=np.float32(loss).item())
    assert names(tmp_path) == ["ckpt-2", "ckpt-4", "ckpt-6"]  # the newest too
    assert ps.training.best_checkpoint(tmp_path, "min") == f"{tmp_path}/ckpt-4"
    assert ps.training.best_checkpoint(tmp_path / "ckpt", "MAX") == f"{tmp_path}/ckpt-6"
    assert ps.training.best_checkpoint(tmp_path / "other", "max") is None
    with pytest.raises(ps.InvalidArgumentError, match='takes "max" or "min", got \'least\''):
        ps.training.best_checkpoint(tmp_path, "least")
    with pytest.raises(ps.InvalidArgumentError, match='takes "max" or "min", got None'):
        ps.training.best_checkpoint(tmp_path, None)  # type: ignore[arg-type]
    with pytest.raises(ps.InvalidArgumentError, match=r"needs checkpoint.save\(prefix, metric=...\)"):
        ps.Checkpoint(x=1, max_to_keep=2, best="min").save(tmp_path / "ckpt", x=1)
    with pytest.raises(ps.InvalidTypeError, match="takes a number, got 'low'"):
        ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=1, metric="low")


def test_misspelt_options_are_no_objects() -> None:
    for options in ({"max_to_kep": 3}, {"max_keep": 3}, {"async_save": True}, {"asynchron": True}, {"keep_every": 2}):
        with pytest.raises(ps.InvalidArgumentError, match="looks like the option .*the options are max_to_keep, keep"):
            ps.Checkpoint(x=1, **options)  # type: ignore[arg-type]
    ps.Checkpoint(step=0, metric=0.0, best_loss=0.0, test=1, maximum=3)
    with pytest.raises(ps.InvalidArgumentError, match="give max_to_keep too"):
        ps.Checkpoint(x=1, best="max")
    with pytest.raises(ps.InvalidArgumentError, match='takes "max" or "min", got \'large\''):
        ps.Checkpoint(x=1, max_to_keep=1, best="large")


@pytest.mark.slow
def test_a_remote_directory_is_written_to_and_read_from(tmp_path: Path) -> None:
    prefix = f"memory://{tmp_path.name}/run/ckpt"
    values = {"w": np.arange(1000.0), "name": "a"}
    assert ps.latest_checkpoint(prefix) is None
    with ps.Checkpoint(values=values, max_to_keep=2, asynchronous=True) as checkpoint:
        for step in (3, 5, 7):
            path = checkpoint.save(prefix, step=step, metric=step, values=values | {"name": f"step {step}"})
    assert path == f"{prefix}-7" == ps.latest_checkpoint(prefix) == ps.latest_checkpoint(prefix.rpartition("/")[0])
    assert ps.training.best_checkpoint(prefix, "min") == f"{prefix}-5"
    restored = ps.Checkpoint(values=values).restore(path)["values"]
    assert restored["name"] == "step 7"
    np.testing.assert_array_equal(restored["w"], values["w"])
    with pytest.raises(ps.StorageError, match=f"there is no checkpoint {prefix}-3"):
        ps.Checkpoint(values=values).restore(f"{prefix}-3")


def test_what_a_killed_process_left_in_a_remote_directory_is_no_checkpoint(tmp_path: Path) -> None:
    prefix = f"memory://{tmp_path.name}/run/ckpt"
    fsspec.filesystem("memory").pipe_file(f"{prefix}-1/arrays/manifest", b"")
    assert ps.latest_checkpoint(prefix) is None
    assert ps.Checkpoint(x=1).save(prefix, x=1) == f"{prefix}-2"
    assert not fsspec.filesystem("memory").exists(f"{prefix}-1")


def test_python_that_would_lose_a_last_checkpoint_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "version_info", (3, 12, 2, "final", 0))
        checkpoint = ps.Checkpoint(x=0, asynchronous=True)
    path = checkpoint.save(tmp_path / "ckpt", x=3)
    assert ps.Checkpoint(x=0).restore(path) == {"x": 3}, "read by another one, which does not wait for the first"
    assert "ps.Checkpoint(asynchronous=True): save waits until all is written, because Python 3.12.2" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can read everything")
def test_a_directory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(ps.StorageError, match="cannot be read"):
        ps.latest_checkpoint(tmp_path / "closed")
