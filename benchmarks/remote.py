"""Cost of reading files of an object store, on a server of this machine, and of many names and small files.

A store answers after 20 to 100 ms, a server on this machine at once. So small files are read with a delay of 20 ms.
"""

import http.client
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
import obstore.store

import penstock as ps
from benchmarks.files import exhaust
from benchmarks.timing import Figure, best_in_turn, seconds, speed_ratio

DELAY = 0.02
SMALL_FILES = 500
MANY_FILES = 10_000
NAMES = 50_000
LARGE_BYTES = 512 << 20
RECORD_BYTES = 1 << 17


def measure() -> list[Figure]:
    """The figures of this file."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for folder, count in (("small", SMALL_FILES), ("many", MANY_FILES), ("names", NAMES)):
            (root / "bucket" / folder).mkdir(parents=True)
            content = b"" if folder == "names" else b"a line of text\n" * 100
            for number in range(count):
                (root / "bucket" / folder / f"{number:06}.txt").write_bytes(content)
        with (root / "bucket" / "large").open("wb") as file:
            for _ in range(LARGE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
        with served(root, DELAY):
            figures = small_files()
        with served(root, 0) as port:
            return [*figures, large_file(port), *many(root)]


@contextmanager
def served(root: Path, delay: float) -> Iterator[int]:
    """The port of a server of these files, which S3's clients in this process ask."""
    program = [sys.executable, "-m", "benchmarks.store_server", str(root), str(delay)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "us-east-1",
        }
        try:
            yield port
        finally:
            process.kill()


def small_files() -> list[Figure]:
    """Small files after each other and in random order, against one by one; by number with making the dataset."""
    names = list(ps.Dataset.list_files("s3://bucket/small/*"))

    def one_by_one() -> float:
        return seconds(lambda: [exhaust(ps.TextLineDataset(name)) for name in names[:50]]) * len(names) / 50

    stream = ps.TextLineDataset(names).batch(256)

    def by_index() -> ps.Dataset:
        return ps.FilesDataset(names, "text")

    by_index()  # where lines begin is known from an earlier run, as in most
    ways = best_in_turn(
        [
            one_by_one,
            lambda: seconds(lambda: exhaust(stream)),
            lambda: seconds(lambda: exhaust(by_index().batch(256))),
            lambda: seconds(lambda: exhaust(by_index().shuffle(seed=1).take(5000).batch(256))),
        ],
        rounds=3,
    )
    rows = 100 * len(names)
    return [
        Figure(f"{len(names)} small files at 20 ms a request, TextLineDataset / one by one", ways[0] / ways[1], 10),
        Figure("the same, made and read by index in order / one by one", ways[0] / ways[2], 10),
        Figure(
            "the same, made and 5,000 lines read at random / a request for each",
            5000 / rows * 100 * ways[0] / ways[3],
            10,
        ),
    ]


def large_file(port: int) -> Figure:
    """One large file as records, against Python's client of HTTP, which drops what it gets."""
    dataset = ps.FixedLengthRecordDataset("s3://bucket/large", RECORD_BYTES).batch(64)

    def by_hand() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/bucket/large")
        response = connection.getresponse()
        room = memoryview(bytearray(1 << 20))
        while response.readinto(room):
            pass
        connection.close()

    ratio = speed_ratio(lambda: exhaust(dataset), by_hand, rounds=5)
    return Figure("512 MiB from the server as records of 128 KiB / http.client, dropped", ratio, 0.7)


def many(root: Path) -> list[Figure]:
    """Cost of a name or a small file where there are many, against fewer."""
    few, all_ = (f"{root}/bucket/names/{begin}*.txt" for begin in ("00", ""))
    far = "s3://bucket/names/"

    def listed(pattern: str) -> float:
        return seconds(lambda: ps.Dataset.list_files(pattern))

    near = best_in_turn([lambda: listed(few), lambda: listed(all_)], rounds=3)
    server = best_in_turn([lambda: listed(f"{far}*"), lambda: seconds(lambda: listed_by_hand("names/"))], rounds=3)
    names = [str(root / "bucket" / "many" / f"{number:06}.txt") for number in range(MANY_FILES)]

    def read(count: int) -> float:
        return seconds(lambda: exhaust(ps.TextLineDataset(names[:count]).batch(256)))

    files = best_in_turn([lambda: read(MANY_FILES // 10), lambda: read(MANY_FILES)], rounds=3)
    return [
        Figure("list_files, a name of 50,000 / of 10,000, time", near[1] / near[0] / 5, 1.5, at_least=False),
        Figure("list_files of 50,000 names of the server / obstore's list, time", server[0] / server[1], 1.5, False),
        Figure("TextLineDataset, a file of 10,000 small ones / of 1,000, time", files[1] / files[0] / 10, 1.5, False),
    ]


def listed_by_hand(folder: str) -> None:
    """All names of a folder of the store, dropped."""
    store = obstore.store.S3Store("bucket", client_options={"allow_http": True})
    for part in obstore.list(store, folder, chunk_size=1000):
        exhaust(part)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
