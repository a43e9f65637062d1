"""Measurements that need a GPU and many cores: `python -m benchmarks.gpu --out results`, under eight minutes in all.

Decoding over threads and processes, data workers, a ResNet and a GPT step in PyTorch and JAX with the input on and off,
copies to the device, `ps.jax.loader` beside `device_put`, and memory. It writes `gpu.json` and `gpu.svg`. A section
whose packages are missing is skipped with the reason. `--small` takes seconds and runs on any machine.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

SECTIONS = {
    "decode": "JPEG files of 500 x 375 read, decoded and resized to 224 x 224: images a second",
    "workers": "the same by data workers of ps.service.local: images a second",
    "torch_steps": "a step in PyTorch: milliseconds",
    "jax_steps": "a step in JAX: milliseconds",
    "torch_copies": "batches to the device in PyTorch: GB a second",
    "jax_copies": "batches to the device in JAX: GB a second",
}
SECTION_SECONDS = 80
IMAGE = (224, 224)
Result = dict[str, Any]


def decode(small: bool) -> Iterator[Result]:
    """Images a second over threads and processes of one map, and the memory of this process at its peak."""
    with images(small) as directory:
        for count in counts(small, 16):
            for processes in (False, True):
                made = files(directory).map(decoded, num_parallel_calls=count, processes=processes)
                kind = "processes" if processes else "threads"
                yield result(f"{kind}: {count}", rate(made.batch(4 if small else 64), small), "images/s")
    yield result("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")


def workers(small: bool) -> Iterator[Result]:
    """Images a second that data workers deliver to this process."""
    with images(small) as directory:
        for count in counts(small, 14):
            with ps.service.local(num_workers=count) as service:
                made = files(directory).map(decoded).batch(4 if small else 64)
                served = made.apply(ps.service.distribute("distributed_epoch", service.target))
                yield result(f"workers: {count}", rate(served, small), "images/s")


def torch_steps(small: bool) -> Iterator[Result]:
    """Steps of both models in PyTorch, first over one batch on the device, then over a loader."""
    yield from steps(import_module("benchmarks.gpu_torch"), small)


def jax_steps(small: bool) -> Iterator[Result]:
    """Steps of both models in JAX, first over one batch on the device, then over a loader."""
    yield from steps(import_module("benchmarks.gpu_jax"), small)


def steps(framework: Any, small: bool) -> Iterator[Result]:
    """Milliseconds of a step with the input off and on; their difference is the exposed wait."""
    with images(small) as directory:
        threads = os.cpu_count() or 1
        pictures = files(directory).map(labelled, num_parallel_calls=threads)
        tokens = np.random.default_rng(0).integers(0, 1000, 1 << 20).astype(np.int32)
        length = 32 if small else 1024
        texts = ps.Dataset.timeseries_windows(tokens, None, length, sequence_stride=length).shuffle(seed=1).repeat()
        sources = {
            "ResNet": (framework.resnet_step(small), pictures.batch(4 if small else 256, drop_remainder=True)),
            "GPT": (framework.gpt_step(small, length), texts.batch(2 if small else 16, drop_remainder=True)),
        }
        for name, (step, dataset) in sources.items():
            with framework.loader(dataset.prefetch(2)) as loader:
                batches = iter(loader)
                fixed = next(batches)
                off = step_seconds(lambda: step(fixed), framework.wait, small)  # noqa: B023
                on = step_seconds(lambda: step(next(batches)), framework.wait, small)  # noqa: B023
            yield result(f"{name}, input off", off * 1e3, "ms")
            yield result(f"{name}, input on", on * 1e3, "ms")
            yield result(f"{name}, exposed wait", max(on - off, 0.0) * 1e3, "ms")
    yield result("peak device memory", framework.peak_memory() / 2**20, "MB")


def torch_copies(small: bool) -> Iterator[Result]:
    """Pageable and pinned copies by hand, and those of the loader on a stream of its own."""
    yield from import_module("benchmarks.gpu_torch").copies(small)


def jax_copies(small: bool) -> Iterator[Result]:
    """`device_put` by hand and `ps.jax.loader`."""
    yield from import_module("benchmarks.gpu_jax").copies(small)


def result(case: str, value: float, unit: str) -> Result:
    """One line of the table."""
    return {"case": case, "value": round(value, 3), "unit": unit}


def counts(small: bool, most: int) -> list[int]:
    """Numbers of threads, processes or workers that are tried."""
    return [count for count in (1, 2) if count <= most] if small else sorted({1, 2, 4, 8, most})


def images(small: bool) -> "tempfile.TemporaryDirectory[str]":
    """A directory of JPEG files."""
    benchmark = import_module("benchmarks.images")
    if small:
        benchmark.IMAGES = 8
    directory = tempfile.TemporaryDirectory()
    benchmark.write_images(Path(directory.name))
    return directory


def files(directory: str) -> ps.Dataset:
    """The names of the files, without end, in a new order each epoch."""
    return ps.Dataset.list_files(directory + "/one/*.jpg", shuffle=True, seed=1).repeat()


def decoded(name: str) -> Any:
    """One image, as a training reads it."""
    return ps.image.decode(Path(name).read_bytes(), size=IMAGE)


def labelled(name: str) -> Any:
    """One image with a label, in floats between 0 and 1."""
    return decoded(name).astype(np.float32) / 255, np.int32(len(name) % 10)


def rate(dataset: ps.Dataset, small: bool) -> float:
    """Rows a second, from the second batch on, for four seconds."""
    batches = iter(dataset)
    next(batches)
    seen, start, span = 0, time.perf_counter(), 0.1 if small else 4.0
    while time.perf_counter() - start < span:
        seen += len(next(batches))
    seconds = time.perf_counter() - start
    batches.close()
    return seen / seconds


def step_seconds(step: Callable[[], Any], wait: Callable[[Any], None], small: bool) -> float:
    """Seconds of one step in a row of many, after some that compile and warm up."""
    for _ in range(1 if small else 10):
        wait(step())
    number = 2 if small else 50
    start = time.perf_counter()
    for _ in range(number):
        last = step()
    wait(last)
    return (time.perf_counter() - start) / number


def measure_all(small: bool) -> Result:
    """Every section in a process of its own, so that frameworks do not share the device."""
    found: Result = {"machine": platform.platform(), "cores": os.cpu_count(), "device": device(), "sections": {}}
    for name, title in SECTIONS.items():
        command = [sys.executable, "-m", "benchmarks.gpu", "--section", name, *(["--small"] if small else [])]
        print(f"{name}: {title}", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECTION_SECONDS)
        except subprocess.TimeoutExpired:
            found["sections"][name] = {"title": title, "skipped": f"no end after {SECTION_SECONDS} s"}
            continue
        if done.returncode:
            found["sections"][name] = {"title": title, "skipped": done.stderr.strip().splitlines()[-1]}
        else:
            found["sections"][name] = {"title": title, "results": json.loads(done.stdout.splitlines()[-1])}
    return found


def device() -> str:
    """The name of the GPU, or "none"."""
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "none"


def plot(found: Result) -> str:
    """Bars for every figure, one group a section, as SVG."""
    lines, y = [], 10
    for section in found["sections"].values():
        y += 30
        lines.append(f'<text x="10" y="{y}" font-weight="bold">{section["title"]}</text>')
        rows = section.get("results") or []
        if "skipped" in section:
            y += 20
            lines.append(f'<text x="10" y="{y}">skipped: {escaped(section["skipped"])}</text>')
        for unit in dict.fromkeys(row["unit"] for row in rows):
            largest = max(row["value"] for row in rows if row["unit"] == unit) or 1
            for row in (row for row in rows if row["unit"] == unit):
                y += 20
                width = 400 * row["value"] / largest
                lines.append(f'<text x="10" y="{y}">{row["case"]}</text>')
                lines.append(f'<rect x="220" y="{y - 12}" width="{width:.1f}" height="14" fill="#3a7bd5"/>')
                lines.append(f'<text x="{230 + width:.1f}" y="{y}">{row["value"]:,.5g} {unit}</text>')
    style = "text{font:13px sans-serif;fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{y + 20}"><style>{style}</style>'
    return head + "".join(lines) + "</svg>\n"


def escaped(text: str) -> str:
    """Text that may stand between tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def main() -> int:
    """Measure, and write both files; with `--section`, print the results of one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."), help="the directory of gpu.json and gpu.svg")
    parser.add_argument("--small", action="store_true", help="a few seconds, to see that everything runs")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.section:
        print(json.dumps(list(globals()[arguments.section](arguments.small))))
        return 0
    found = measure_all(arguments.small)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.out / "gpu.svg").write_text(plot(found))
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
