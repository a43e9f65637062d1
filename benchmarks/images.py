"""Folders of JPEG files to batches, against the bare decoder and TensorFlow, by processor time on two threads."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

import penstock as ps
from benchmarks.timing import Figure, processor_ratio, processor_seconds

IMAGES = 256
HEIGHT, WIDTH = 375, 500
BATCH = 32
SMALL = (224, 224)
ROUNDS = 7


def measure() -> list[Figure]:
    """The figures of this file."""
    with tempfile.TemporaryDirectory() as directory:
        names = write_images(Path(directory))
        figures = [
            processor_ratio(
                "JPEG 500 x 375, read + decode + batch / read and decode alone",
                lambda: exhaust(dataset(directory, (HEIGHT, WIDTH))),
                lambda: decode_alone(names),
                0.7,
                ROUNDS,
            )
        ]
        python = os.environ.get("PENSTOCK_BENCH_TENSORFLOW")
        if python is None:
            print(
                "no figure against TensorFlow: PENSTOCK_BENCH_TENSORFLOW names no Python that has it", file=sys.stderr
            )
            return figures
        return figures + against_tensorflow(python, directory)


def write_images(directory: Path) -> list[str]:
    """JPEG files of about 65 kB, with colours that change slowly and a little noise, as photographs have."""
    rng = np.random.default_rng(0)
    names = []
    (directory / "one").mkdir()
    for number in range(IMAGES):
        rough = rng.integers(0, 256, (24, 32, 3), np.uint8)
        smooth = np.asarray(Image.fromarray(rough).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
        pixels = np.clip(smooth + rng.integers(-12, 13, smooth.shape, np.int16), 0, 255).astype(np.uint8)
        name = directory / "one" / f"{number:04}.jpg"
        name.write_bytes(simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling="420"))
        names.append(str(name))
    return names


def dataset(directory: str, size: tuple[int, int], interpolation: str = "bilinear") -> ps.Dataset:
    """Batches of images of one size, decoded in two threads."""
    images = ps.Dataset.from_image_folder(
        directory, size, label_mode=None, interpolation=interpolation, num_parallel_calls=2
    )
    return images.batch(BATCH)


def exhaust(items: Iterable[object]) -> None:
    """Visit every element."""
    for _ in items:
        pass


def decode_alone(names: list[str]) -> None:
    """Every image in two threads, and nothing else."""

    def decode(name: str) -> None:
        with open(name, "rb") as file:
            simplejpeg.decode_jpeg(file.read())

    with ThreadPoolExecutor(2) as pool:
        exhaust(pool.map(decode, names))


def against_tensorflow(python: str, directory: str) -> list[Figure]:
    """The same batches, and smaller ones, by TensorFlow with two threads, in turn with these."""
    command = [python, "-m", "benchmarks.images_in_tensorflow", directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def theirs(way: str) -> float:
            print(way, file=child.stdin, flush=True)
            return float(child.stdout.readline())

        def ratio(question: str, size: tuple[int, int], way: str, goal: float, by: str = "bilinear") -> Figure:
            ours: Callable[[], object] = lambda: exhaust(dataset(directory, size, by))  # noqa: E731
            ours()
            theirs(way)
            ratios = sorted(theirs(way) / processor_seconds(ours) for _ in range(ROUNDS))
            return Figure(question, statistics.median(ratios), goal, spread=(ratios[0], ratios[-1]))

        figures = [
            ratio("the same / TensorFlow", (HEIGHT, WIDTH), "whole", 1.0),
            ratio("resized to 224 x 224 too / TensorFlow, which does not smooth", SMALL, "resized", 1.0),
            ratio("smoothed too / TensorFlow with antialias=True", SMALL, "smoothed", 1.0, "triangle"),
        ]
        child.stdin.close()
    return figures
