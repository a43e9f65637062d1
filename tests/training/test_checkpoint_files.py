"""Where checkpoints lie: which is the newest, which are kept, and directories that other processes change."""

import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import penstock as ps
from penstock.training.checkpoint_folders import UNFINISHED


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


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


def test_the_newest_is_found_beside_a_writer_that_keeps_one(tmp_path: Path) -> None:
    ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=0)
    done = threading.Event()

    def write() -> None:  # as a save with max_to_keep=1 does, but faster
        for number in range(1, 2000):
            shutil.copytree(tmp_path / f"ckpt-{number}", tmp_path / f"ckpt-{number + 1}{UNFINISHED}")
            (tmp_path / f"ckpt-{number + 1}{UNFINISHED}").rename(tmp_path / f"ckpt-{number + 1}")
            (tmp_path / f"ckpt-{number}").rename(tmp_path / f"ckpt-{number}{UNFINISHED}")
            shutil.rmtree(tmp_path / f"ckpt-{number}{UNFINISHED}")
            if done.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = [ps.latest_checkpoint(tmp_path) for _ in range(500)]
    finally:
        done.set()
        writer.join()
    assert None not in found
    assert len(set(found)) > 1


def test_a_checkpoint_that_was_deleted_while_it_was_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ps.Checkpoint(x=1).save(tmp_path / "ckpt", x=1)

    def delete(*_: Any, **__: Any) -> None:
        shutil.rmtree(path)
        raise FileNotFoundError("arrays")

    monkeypatch.setattr(ocp.Checkpointer, "restore", delete)
    with pytest.raises(ps.StorageError, match=f"checkpoint {path} was deleted while it was read: ps.latest_checkpoint"):
        ps.Checkpoint(x=1).restore(path)


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


def test_the_step_is_the_number(tmp_path: Path) -> None:
    checkpoint = ps.Checkpoint(x=1)
    assert checkpoint.save(tmp_path / "ckpt", step=40, x=1) == f"{tmp_path}/ckpt-40"
    assert checkpoint.save(tmp_path / "ckpt", step=np.int64(8), x=1) == f"{tmp_path}/ckpt-8"
    assert checkpoint.save(tmp_path / "ckpt", x=1) == f"{tmp_path}/ckpt-41"
    with pytest.raises(ps.StorageError, match=f"there is a checkpoint {tmp_path}/ckpt-8 already: save another step"):
        checkpoint.save(tmp_path / "ckpt", step=8, x=1)
    with pytest.raises(ps.InvalidTypeError, match="takes a whole number, got 1.5"):
        checkpoint.save(tmp_path / "ckpt", step=1.5, x=1)
    with pytest.raises(ps.InvalidArgumentError, match="must be at least 0, got -1"):
        checkpoint.save(tmp_path / "ckpt", step=-1, x=1)
    with_step = ps.Checkpoint(step=0)
    assert with_step.restore(with_step.save(tmp_path / "ckpt", step=100)) == {"step": 100}
    assert ps.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-100"


def test_every_nth_is_kept(tmp_path: Path) -> None:
    checkpoint = ps.Checkpoint(x=1, max_to_keep=2, keep_every_n=4)
    for step in range(3, 12):
        checkpoint.save(tmp_path / "ckpt", step=step, x=1)
    assert names(tmp_path) == ["ckpt-10", "ckpt-11", "ckpt-4", "ckpt-8"]


def test_the_best_by_a_metric_are_kept_and_found(tmp_path: Path) -> None:
    checkpoint = ps.Checkpoint(metric=0.0, max_to_keep=2, best="min")
    for loss in (0.5, 0.2, float("nan"), 0.1, 0.4, 0.3):
        checkpoint.save(tmp_path / "ckpt", metric=np.float32(loss).item())
    assert names(tmp_path) == ["ckpt-2", "ckpt-4", "ckpt-6"]  # the newest too
    assert ps.best_checkpoint(tmp_path, "min") == f"{tmp_path}/ckpt-4"
    assert ps.best_checkpoint(tmp_path / "ckpt", "MAX") == f"{tmp_path}/ckpt-6"
    assert ps.best_checkpoint(tmp_path / "other", "max") is None
    with pytest.raises(ps.InvalidArgumentError, match='takes "max" or "min", got \'least\''):
        ps.best_checkpoint(tmp_path, "least")
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


def test_a_remote_directory_is_written_to_and_read_from(tmp_path: Path) -> None:
    prefix = f"memory://{tmp_path.name}/run/ckpt"
    values = {"w": np.arange(1000.0), "name": "a"}
    assert ps.latest_checkpoint(prefix) is None
    with ps.Checkpoint(values=values, max_to_keep=2, asynchronous=True) as checkpoint:
        for step in (3, 5, 7):
            path = checkpoint.save(prefix, step=step, metric=step, values=values | {"name": f"step {step}"})
    assert path == f"{prefix}-7" == ps.latest_checkpoint(prefix) == ps.latest_checkpoint(prefix.rpartition("/")[0])
    assert ps.best_checkpoint(prefix, "min") == f"{prefix}-5"
    restored = ps.Checkpoint(values=values).restore(path)["values"]
    assert restored["name"] == "step 7"
    np.testing.assert_array_equal(restored["w"], values["w"])
    with pytest.raises(ps.StorageError, match=f"there is no checkpoint {prefix}-3"):
        ps.Checkpoint(values=values).restore(f"{prefix}-3")


def test_what_a_killed_process_left_in_a_remote_directory_is_no_checkpoint(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    prefix = f"memory://{tmp_path.name}/run/ckpt"
    fsspec.filesystem("memory").pipe_file(f"{prefix}-1/arrays/manifest", b"")
    assert ps.latest_checkpoint(prefix) is None
    assert ps.Checkpoint(x=1).save(prefix, x=1) == f"{prefix}-2"
    assert not fsspec.filesystem("memory").exists(f"{prefix}-1")


def test_python_that_would_lose_a_checkpoint_at_its_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 2, "final", 0))
    with pytest.raises(ps.InvalidArgumentError, match=r"needs Python 3.12.3 or newer, or 3.11; this is 3.12.2"):
        ps.Checkpoint(x=1, asynchronous=True)
    ps.Checkpoint(x=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can read everything")
def test_a_directory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(ps.StorageError, match="cannot be read"):
        ps.latest_checkpoint(tmp_path / "closed")
