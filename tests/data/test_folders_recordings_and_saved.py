"""What holds for folders of files, recordings and saved datasets, as the two lists of formats of records have it."""

import json
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import object_server
from past_errors import read_past_errors
from PIL import Image
from two_workers import two_workers

import penstock as ps

pytest.importorskip("soundfile", reason="soundfile is not installed")
av = pytest.importorskip("av", reason="PyAV is not installed")

COUNT = 24
FRAMES = 8
"""Of each of three recordings."""
LOCAL = "(load|snapshot) takes a local path, got 's3://bucket/all/"
NOT_BY_FILE = "AutoShardPolicy.FILE does not fit: .* reads no files; use AutoShardPolicy.DATA"


def write_images(folder):
    for number in range(COUNT):
        (folder / "ab"[number // 12]).mkdir(exist_ok=True)
        Image.fromarray(np.full((5, 5, 3), number, np.uint8)).save(folder / "ab"[number // 12] / f"{number:02}.png")


def write_texts(folder):
    for number in range(COUNT):
        (folder / "ab"[number // 12]).mkdir(exist_ok=True)
        (folder / "ab"[number // 12] / f"{number:02}.txt").write_text(f"{number}")


def write_sounds(folder):
    """Three files of eight clips, each of ten equal samples."""
    for number in range(3):
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 1000, 0, "NONE", "NONE"))
            file.writeframes(np.repeat(np.arange(FRAMES) + number * FRAMES, 10).astype("<i2").tobytes())


def write_videos(folder):
    """Three files of eight frames, each of one brightness."""
    for number in range(3):
        with av.open(str(folder / f"{number}.mp4"), "w", options={"movflags": "faststart"}) as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width, stream.height, stream.pix_fmt, stream.codec_context.gop_size = 32, 16, "yuv420p", 1
            for frame in range(FRAMES):
                picture = np.full((16, 32, 3), 10 * (number * FRAMES + frame), np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())


def sound_at(name, clip):
    return int(ps.audio.decode(name, samples=(10 * clip, 10 * clip + 10), dtype="int16")[0][0, 0])


def frame_at(name, frame):
    return round(ps.video.decode(name, [frame], channels=1).mean() / 10)


@ps.files.reads_file
def sounds_in(name):
    return ps.Dataset.range(ps.audio.info(name).samples // 10).map(lambda clip: sound_at(name, int(clip)))


@ps.files.reads_file
def frames_in(name):
    return ps.Dataset.range(ps.video.info(name).frames).map(lambda frame: frame_at(name, int(frame)))


def clips_of(pattern, read):
    """By number: an element is the name of a file and a place in it."""
    names = list(ps.Dataset.list_files(pattern))
    return ps.Dataset.from_list([(name, place) for name in names for place in range(FRAMES)]).map(read)


def saved(format):
    def write(folder):
        rows = ps.Dataset.range(COUNT).map(lambda x: {"x": x, "more": np.full(40, x, np.int32)})
        rows.save(folder / "saved", format=format, shards=3)

    return Kind(write, load, "saved/*1*", remote=LOCAL)


def load(folder):
    return ps.Dataset.load(f"{folder}/saved").map(lambda row: int(row["x"]))


def snapshot(folder):
    return ps.Dataset.range(COUNT).map(lambda x: x).snapshot(f"{folder}/kept", format="parquet", shards=3)


@dataclass(frozen=True)
class Kind:
    """How the numbers 0 to 23 are written and read.

    Attributes:
        damaged: the pattern of a file; it is cut, or has a last byte that is no UTF-8.
        lost: which numbers that costs; None if nothing can be read then.
        indexed: whether elements are read by number.
        by_file: why they cannot be divided by file; None if they can.
        remote: why they cannot be read from an object store; None if they can.
    """

    write: Callable[[Path], Any]
    read: Callable[[Any], ps.Dataset]
    damaged: str
    lost: range | None = None
    indexed: bool = True
    by_file: str | None = None
    remote: str | None = None


KINDS = {
    "images": Kind(
        write_images,
        lambda folder: ps.Dataset.from_image_folder(folder, (2, 2)).map(lambda image, _: int(image[0, 0, 0])),
        "a/07.png",
        range(7, 8),
    ),
    "texts": Kind(
        write_texts,
        lambda folder: ps.Dataset.from_text_folder(folder).map(lambda text, _: int(text)),
        "a/07.txt",
        range(7, 8),
    ),
    "clips of sounds": Kind(
        write_sounds,
        lambda folder: clips_of(f"{folder}/*.wav", sound_at),
        "1.wav",
        range(8, 16),
        by_file=NOT_BY_FILE,
    ),
    "sounds by file": Kind(
        write_sounds,
        lambda folder: ps.Dataset.list_files(f"{folder}/*.wav").flat_map(sounds_in),
        "1.wav",
        range(8, 16),
        indexed=False,
    ),
    "clips of videos": Kind(
        write_videos,
        lambda folder: clips_of(f"{folder}/*.mp4", frame_at),
        "1.mp4",
        range(8, 16),
        by_file=NOT_BY_FILE,
    ),
    "videos by file": Kind(
        write_videos,
        lambda folder: ps.Dataset.list_files(f"{folder}/*.mp4").flat_map(frames_in),
        "1.mp4",
        range(8, 16),
        indexed=False,
    ),
    **{f"saved as {format}": saved(format) for format in ("penstock", "parquet", "npy", "tfrecord", "tar")},
    "snapshot": Kind(snapshot, snapshot, "kept/*1*", remote=LOCAL),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    kind.write(made)
    return made


@pytest.fixture(scope="module")
def running():
    with object_server() as server:
        yield server


def numbers(dataset):
    return [int(number) for number in dataset]


def test_rows_come_in_order_and_by_number(kind, folder):
    dataset = kind.read(folder)
    assert numbers(dataset) == list(range(COUNT))
    if kind.indexed:
        assert len(dataset) == COUNT and dataset[-1] == COUNT - 1 and numbers(dataset[7:9]) == [7, 8]


def test_a_shuffle_of_all_rows_is_resumed_in_the_middle(kind, folder):
    shuffled = kind.read(folder).shuffle(COUNT, seed=4)
    whole, iterator, other = (iter(ps.Dataset(shuffled.node)) for _ in range(3))
    taken = [int(next(iterator)) for _ in range(10)]
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    iterator.close()
    expected = numbers(whole)
    assert taken + numbers(other) == expected and sorted(expected) == list(range(COUNT)) != expected


@pytest.mark.parametrize("policy", ["DATA", "FILE"])
def test_workers_have_each_row_once(kind, folder, policy):
    dataset = kind.read(folder).batch(5).with_options(ps.Options(auto_shard_policy=policy))
    strategies = [ps.HostStrategy(1, 2, worker) for worker in range(2)]
    if policy == "FILE" and kind.by_file:
        with pytest.raises(ps.InvalidArgumentError, match=kind.by_file):
            strategies[0].distribute_dataset(dataset)
        return
    found = [[int(x) for step in one.distribute_dataset(dataset) for x in step.values[0]] for one in strategies]
    assert sorted(found[0] + found[1]) == list(range(COUNT)) and found[0] and found[1]


@pytest.mark.slow
def test_a_data_service_gives_each_row_once(kind, folder):
    dataset = kind.read(folder).shuffle(COUNT, seed=4).batch(5)
    with two_workers() as service:
        shared = dataset.apply(ps.service.distribute("distributed_epoch", service))
        assert [batch.tolist() for batch in shared] == [batch.tolist() for batch in dataset]


def test_files_of_an_object_store(kind, folder, running, monkeypatch):
    pytest.importorskip("obstore", reason="the extra cloud is not installed: pip install obstore")
    running.forget()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    for file in folder.rglob("*.*"):
        running.objects[f"bucket/all/{file.relative_to(folder)}"] = file.read_bytes()
    if kind.remote:
        with pytest.raises(ps.PenstockError, match=kind.remote):
            kind.read("s3://bucket/all")
        return
    dataset = kind.read("s3://bucket/all")
    assert numbers(dataset) == list(range(COUNT))
    assert sorted(numbers(dataset.shuffle(COUNT, seed=1))) == list(range(COUNT))


def test_a_cut_file_is_named_and_costs_its_rows(kind, tmp_path):
    kind.write(tmp_path)
    path = min(tmp_path.glob(kind.damaged))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\xff")
    if kind.lost is None:
        with pytest.raises(ps.PenstockError, match=path.name):
            list(kind.read(tmp_path))
        return
    got, errors = read_past_errors(kind.read(tmp_path), ps.StorageError, ps.ElementError)
    assert set(range(COUNT)) - set(kind.lost) <= set(got) and errors and path.name in str(errors[0])
