"""A small server that speaks what object stores speak: objects by name, in parts, by tag, and lists of names.

It also fails as real servers do: `fail(name, ...)` says how the next answers for a name go wrong.
"""

import hashlib
import json
import re
import socket
import threading
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.sax.saxutils import escape

_DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
_PAGE = 1000
_HADOOP = "webhdfs/v1/"


class ObjectServer(ThreadingHTTPServer):
    """Serves `objects`, whose names are "bucket/name", on a port of this machine, from threads of this process."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.refused: set[str] = set()
        self.sent = 0
        self.lists = 0
        self.seconds = 0.0
        self.ranges = True
        self.answering = self.most_at_a_time = 0
        self.lock = threading.Condition()
        self._faults: defaultdict[str, list[Callable[[_Answer, bytes], None]]] = defaultdict(list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes clients of all three kinds of store ask this server."""
        key = {"gcs_base_url": self.address, "disable_oauth": True, "client_email": "", "private_key": ""}
        return {
            "AWS_ENDPOINT_URL": self.address,
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**key, "private_key_id": ""}),
            "AZURE_ENDPOINT": self.address,
        }

    def fail(self, name: str, *faults: Callable[["_Answer", bytes], None]) -> None:
        """Answer the next requests for an object in these ways."""
        self._faults[name] += faults

    def fault_for(self, name: str) -> "Callable[[_Answer, bytes], None] | None":
        return self._faults[name].pop(0) if self._faults[name] else None

    def forget(self) -> None:
        """Begin a test: no objects, faults and counts, and nobody who is still being answered."""
        self.objects.clear()
        _tag.cache_clear()
        with self.lock:
            assert self.lock.wait_for(lambda: self.answering == 0, timeout=60)
        self.requests.clear()
        self.keys.clear()
        self.refused.clear()
        self._faults.clear()
        self.sent, self.lists, self.seconds, self.most_at_a_time = 0, 0, 0.0, 0
        self.ranges = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is none."""


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """A server that runs."""
    server = ObjectServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="object-server", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int, **headers: str) -> Callable[["_Answer", bytes], None]:
    """An answer without content, such as 503."""
    return lambda answer, content: answer.send(code, b"", {name.replace("_", "-"): headers[name] for name in headers})


def cut(answer: "_Answer", content: bytes) -> None:
    """Half of the content, if any is sent, after which the connection is closed."""
    if content and answer.command == "GET":
        answer.begin_content(content)
        answer.wfile.write(answer.part(content)[: len(answer.part(content)) // 2])
        answer.wfile.flush()
    answer.close_connection = True
    answer.connection.shutdown(socket.SHUT_RDWR)


def dropped(answer: "_Answer", content: bytes) -> None:
    """No answer at all."""
    answer.close_connection = True
    answer.connection.shutdown(socket.SHUT_RDWR)


def short(answer: "_Answer", content: bytes) -> None:
    """Half of the content, whose head says that it is all of what was asked for."""
    part = answer.part(content)
    answer.begin_content(content, len(part) // 2)
    answer.wfile.write(part[: len(part) // 2])


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer would wait 40 ms for the head to be acknowledged
    server: ObjectServer

    def log_message(self, *_: Any) -> None:
        """The tests count requests themselves."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        keys = set(re.findall(r"Credential=(\w+)/", self.headers.get("Authorization", "")))
        self.server.keys |= keys
        if keys & self.server.refused:
            self.send(403, b"<Error><Code>ExpiredToken</Code></Error>")
            return
        place, _, query = self.path.partition("?")
        name = urllib.parse.unquote(place).strip("/")
        asked = urllib.parse.parse_qs(query, keep_blank_values=True)
        if name.startswith(_HADOOP):
            self._answer_of_hadoop(name.removeprefix(_HADOOP), asked)
            return
        if "list-type" in asked or "comp" in asked:
            fault = self.server.fault_for(name)
            if fault is None:
                self._list(name, asked)
            else:
                fault(self, b"")
            return
        self._answer_counted(name)

    def _answer_of_hadoop(self, name: str, asked: dict[str, list[str]]) -> None:
        """As WebHDFS has it: what a file or a folder is, what is in a folder, and parts of files."""
        op = asked["op"][0]
        below = {one: len(content) for one, content in self.server.objects.items() if one.startswith(f"{name}/")}
        if op == "OPEN":
            begin, length = (int(asked[key][0]) for key in ("offset", "length"))
            self.headers["Range"] = f"bytes={begin}-{begin + length - 1}"
            self._answer_counted(name)
        elif op == "LISTSTATUS":
            files = [_about_in_hadoop(one.removeprefix(f"{name}/"), size) for one, size in below.items()]
            self.send(200, json.dumps({"FileStatuses": {"FileStatus": files}}).encode())
        elif (fault := self.server.fault_for(f"{name}?")) is not None:
            fault(self, b"")
        elif name in self.server.objects or below:
            about = _about_in_hadoop("", len(self.server.objects.get(name, b"")), "DIRECTORY" if below else "FILE")
            self.send(200, json.dumps({"FileStatus": about}).encode())
        else:
            missing = {"exception": "FileNotFoundException", "message": f"File /{name} does not exist."}
            self.send(404, json.dumps({"RemoteException": missing}).encode())

    def _answer_counted(self, name: str) -> None:
        with self.server.lock:
            self.server.requests[name] += name in self.server.objects  # another may be one of the test before
            self.server.answering += 1
            self.server.most_at_a_time = max(self.server.answering, self.server.most_at_a_time)
        try:
            threading.Event().wait(self.server.seconds)
            self._answer_for(name)
        finally:
            with self.server.lock:
                self.server.answering -= 1
                self.server.lock.notify_all()

    def _answer_for(self, name: str) -> None:
        content = self.server.objects.get(name)
        fault = self.server.fault_for(name)
        if fault is not None:
            fault(self, content or b"")
        elif content is None:
            self.send(404, b"")
        else:
            self.send_part(content)

    def send_part(self, content: bytes) -> None:
        """What was asked for of some content."""
        if not self.server.ranges:
            del self.headers["Range"]
        tag = self.headers.get("If-Match")
        if tag and tag != _tag(content):
            self.send(412, b"")
        elif "Range" in self.headers and self._range(content)[0] >= len(content):
            self.send(416, b"")
        else:
            self.begin_content(content)
            if self.command == "GET":
                with self.server.lock:
                    self.server.sent += len(self.part(content))
                self.wfile.write(self.part(content))

    def part(self, content: bytes) -> bytes:
        """The bytes that were asked for."""
        return content[slice(*self._range(content))] if "Range" in self.headers else content

    def _range(self, content: bytes) -> tuple[int, int]:
        begin, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
        return int(begin), min(int(end) + 1 if end else len(content), len(content))

    def begin_content(self, content: bytes, length: int | None = None) -> None:
        """The head of an answer, whose length may be a lie."""
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            begin, end = self._range(content)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(self.part(content)) if length is None else length))
        self.send_header("ETag", _tag(content))
        self.send_header("Last-Modified", _DATE)
        self.send_header("x-ms-blob-type", "BlockBlob")
        self.end_headers()

    def send(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _list(self, bucket: str, asked: dict[str, list[str]]) -> None:
        """Up to a thousand names behind a marker, as S3 and Google list them, or as Azure does."""
        with self.server.lock:
            self.server.lists += 1
        prefix, after = (asked.get(key, [""])[0] for key in ("prefix", "continuation-token"))
        after = after or asked.get("marker", [""])[0]
        deep = "delimiter" not in asked
        begin = f"{bucket}/{prefix}"
        found = sorted(
            name.removeprefix(f"{bucket}/")
            for name in self.server.objects
            if name.startswith(begin) and (deep or "/" not in name.removeprefix(begin))
        )
        left = [name for name in found if name > after]
        page, more = left[:_PAGE], len(left) > _PAGE
        self.send(200, (_azure if "comp" in asked else _s3)(self.server, bucket, page, more).encode())


def _about_in_hadoop(suffix: str, length: int, kind: str = "FILE") -> dict[str, Any]:
    return {"pathSuffix": suffix, "type": kind, "length": length, "modificationTime": 1445412480000}


def _s3(server: ObjectServer, bucket: str, page: list[str], more: bool) -> str:
    entries = "".join(
        f"<Contents><Key>{escape(name)}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>"
        f"<ETag>{escape(_tag(server.objects[f'{bucket}/{name}']))}</ETag>"
        f"<Size>{len(server.objects[f'{bucket}/{name}'])}</Size></Contents>"
        for name in page
    )
    token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
    return (
        f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name>'
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
    )


def _azure(server: ObjectServer, bucket: str, page: list[str], more: bool) -> str:
    entries = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{_DATE}</Last-Modified>"
        f"<Etag>{escape(_tag(server.objects[f'{bucket}/{name}']))}</Etag><BlobType>BlockBlob</BlobType>"
        f"<Content-Length>{len(server.objects[f'{bucket}/{name}'])}</Content-Length>"
        "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
        for name in page
    )
    marker = escape(page[-1]) if more else ""
    return (
        f'<?xml version="1.0"?><EnumerationResults ContainerName="{bucket}"><Blobs>{entries}</Blobs>'
        f"<NextMarker>{marker}</NextMarker></EnumerationResults>"
    )


@cache  # until the next test begins; a large object is asked for in many parts
def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'
