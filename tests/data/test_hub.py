"""Files on Hugging Face's hub, of which a small one stands here: what a branch meant when a dataset was made."""

import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps

hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

OLD, NEW = "a" * 40, "b" * 40


def parquet(rows: list[int]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": rows}), file)
    return file.getvalue()


class Hub(ThreadingHTTPServer):
    """Serves one repository of datasets, of which `main` can be moved."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.main = OLD
        self.files = {
            OLD: {"data/0.parquet": parquet([0, 1, 2]), "data/1.parquet": parquet([3, 4])},
            NEW: {"data/0.parquet": parquet([10, 11, 12]), "data/1.parquet": parquet([13, 14])},
        }


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:4] == ["api", "datasets", "org", "name"]:
            self._about(*parts[4:6], inside="/".join(parts[6:]))
        elif parts[:4] == ["datasets", "org", "name", "resolve"]:
            self._content(self.server.files[parts[4]]["/".join(parts[5:])])
        else:
            self._send(404, b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is written."""

    def _about(self, what: str = "revision", revision: str = "main", *, inside: str) -> None:
        commit = self.server.main if revision == "main" else revision
        if commit not in self.server.files:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif what == "revision":
            self._send(200, json.dumps({"id": "org/name", "sha": commit}).encode())
        else:
            files = self.server.files[commit].items()
            found = [{"type": "file", "oid": commit, "size": len(content), "path": path} for path, content in files]
            folder = {"type": "directory", "oid": "0", "size": 0, "path": "data"}
            self._send(200, json.dumps(found if inside else [folder]).encode())

    def _content(self, content: bytes) -> None:
        begin, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        end = min(int(last) + 1, len(content))
        self._send(206, content[int(begin) : end], {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        here = f"http://127.0.0.1:{server.server_port}"
        files = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, here)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "ENDPOINT", here)
        thread = Thread(target=server.serve_forever)
        thread.start()
        hub.HfFileSystem.clear_instance_cache()
        yield server
        hub.HfFileSystem.clear_instance_cache()
        hub.close_session()
        server.shutdown()
        thread.join()


def numbers(dataset: ps.Dataset) -> list[int]:
    return [int(row["n"]) for row in dataset]


@pytest.mark.parametrize("name", ["data/*.parquet", "data/0.parquet"])
@pytest.mark.parametrize("branch", ["", "@main"])
def test_a_branch_that_moves_changes_no_dataset(server: Hub, branch: str, name: str) -> None:
    named = f"hf://datasets/org/name{branch}/{name}"
    dataset = ps.ParquetDataset(named)
    server.main = NEW
    first = [0, 1, 2, 3, 4] if "*" in name else [0, 1, 2]
    assert numbers(dataset) == first
    assert numbers(ps.ParquetDataset(named)) == [10 + number for number in first]


def test_a_state_is_refused_by_the_dataset_of_another_commit(server: Hub) -> None:
    dataset = ps.ParquetDataset("hf://datasets/org/name/data/*.parquet")
    with iter(dataset) as iterator:
        next(iterator)
        state = iterator.state_dict()
    server.main = NEW
    moved = ps.ParquetDataset("hf://datasets/org/name/data/*.parquet")
    with iter(moved) as iterator, pytest.raises(ps.StateMismatchError):
        iterator.load_state_dict(state)
    with iter(ps.ParquetDataset(f"hf://datasets/org/name@{OLD}/data/*.parquet")) as iterator:
        iterator.load_state_dict(state)
        assert [int(row["n"]) for row in iterator] == [1, 2, 3, 4]


def test_a_branch_that_is_missing_is_named(server: Hub) -> None:
    with pytest.raises(ps.StorageError, match="hf://datasets/org/name@draft/data/0.parquet"):
        ps.ParquetDataset("hf://datasets/org/name@draft/data/0.parquet")
