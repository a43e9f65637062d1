"""A server that speaks what S3 speaks, as fast as Python can: objects are files, which the kernel sends.

`python -m benchmarks.store_server DIRECTORY SECONDS` prints its port and answers each request after so many seconds.
"""

import os
import socket
import sys
import threading
import time
import urllib.parse
from functools import cache
from typing import BinaryIO

_PAGE = 1000
_DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


def serve(connection: socket.socket, root: str, delay: float) -> None:
    """Answer the requests of one connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rb")
    while line := stream.readline():
        target = urllib.parse.urlparse(line.split()[1].decode())
        asked = range_of(stream)
        path, query = root + urllib.parse.unquote(target.path), urllib.parse.parse_qs(target.query)
        time.sleep(delay)
        if "list-type" in query:
            answer(connection, "200 OK", listing(path, query))
        elif not os.path.isfile(path):
            answer(connection, "404 Not Found", b"")
        else:
            send(connection, path, asked, line.startswith(b"GET"))


def range_of(stream: BinaryIO) -> str:
    """The part that a request asks for; the other lines of its head are passed over."""
    found = ""
    while header := stream.readline().strip():
        name, _, value = header.partition(b":")
        if name.lower() == b"range":
            found = value.decode().strip().removeprefix("bytes=")
    return found


def send(connection: socket.socket, path: str, asked: str, with_content: bool) -> None:
    """A file, or the part that was asked for."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        first, _, last = asked.partition("-")
        begin, end = int(first or 0), min(int(last) + 1 if last else size, size)
        part = f"Content-Range: bytes {begin}-{end - 1}/{size}\r\n" if asked else ""
        head = (
            f"HTTP/1.1 {'206 Partial Content' if asked else '200 OK'}\r\nContent-Length: {end - begin}\r\n"
            f'ETag: "{size}"\r\nLast-Modified: {_DATE}\r\n{part}\r\n'
        )
        connection.sendall(head.encode())
        while with_content and begin < end:
            begin += os.sendfile(connection.fileno(), file.fileno(), begin, end - begin)


def answer(connection: socket.socket, status: str, content: bytes) -> None:
    """A whole answer."""
    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)


def listing(directory: str, query: dict[str, list[str]]) -> bytes:
    """The next names of a directory, as S3 lists them."""
    prefix, after = (query.get(key, [""])[0] for key in ("prefix", "continuation-token"))
    folder = os.path.join(directory, prefix)
    names = [name for name in names_in(folder) if prefix + name > after]
    entries = "".join(
        f"<Contents><Key>{prefix}{name}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>"
        f'<ETag>"0"</ETag><Size>0</Size></Contents>'
        for name in names[:_PAGE]
    )
    more = len(names) > _PAGE
    token = f"<NextContinuationToken>{prefix}{names[_PAGE - 1]}</NextContinuationToken>" if more else ""
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
    ).encode()


@cache
def names_in(folder: str) -> list[str]:
    """The names of a directory, which does not change."""
    return sorted(os.listdir(folder))


def main() -> None:
    root, delay = sys.argv[1], float(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve, args=(connection, root, delay), daemon=True).start()


if __name__ == "__main__":
    main()
