"""What a line's bytes travel over: a socket, as it is or encrypted, whose other end may be slow or silent."""

import socket
import ssl
from abc import ABC, abstractmethod
from array import array
from collections import deque
from os import close
from typing import Final

MOST_FILES: Final = 65
"""How many files can come with what is received at once; Linux allows 253."""

_ANCILLARY: Final = socket.CMSG_SPACE(MOST_FILES * 4)
_SEALED: Final = 1 << 20
"""So many encrypted bytes are sent or received at once."""

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))


class SocketConnection(ABC):
    """A socket, which the connection then owns.

    Attributes:
        files: descriptors that have arrived, which whoever takes them closes.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self.files: deque[int] = deque()

    @property
    def unsent(self) -> bool:
        """Whether bytes that `send` has taken are still to be sent."""
        return False

    @property
    def on_one_machine(self) -> bool:
        """Whether both ends are processes of one machine, by its kind of socket."""
        return self._socket.family == socket.AF_UNIX

    def notice_loss(self) -> None:
        """Send small frames at once, and raise an error half a minute after the other machine has vanished."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):  # not every system can be told so
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def shake_hands(self) -> bool:
        """Go on with the handshake, if it has one, as far as it goes without waiting; whether it is complete.

        Raises:
            EOFError: the other end is closed.
            OSError: the other end is not trusted, or does not speak TLS.
        """
        return True

    def fileno(self) -> int:
        """The descriptor of the socket, for a selector."""
        return self._socket.fileno()

    @abstractmethod
    def receive(self, most: int, *, wait: bool) -> bytes:
        """What has arrived, so many bytes at most; b"" if there are none and it does not wait.

        Fewer bytes than that are all: a selector tells of those that come later.

        Raises:
            EOFError: the other end is closed.
            OSError: the connection is broken.
        """

    @abstractmethod
    def send(self, data: memoryview, *, wait: bool) -> int:
        """How many of these bytes it has taken: all, if it waits.

        Raises:
            OSError: the other end is closed.
        """

    def send_with_files(self, data: memoryview, files: list[int]) -> int:
        """Send descriptors with some of the bytes, or all; how many."""
        return socket.send_fds(self._socket, [data], files)

    def close(self) -> None:
        """Close the socket, and what has arrived and was not taken."""
        self._socket.close()
        while self.files:
            close(self.files.popleft())


class PlainConnection(SocketConnection):
    """Bytes as they are."""

    def receive(self, most: int, *, wait: bool) -> bytes:
        """As the base class says."""
        try:
            content, ancillary, _, _ = self._socket.recvmsg(most, _ANCILLARY, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        if not content:
            raise EOFError
        for _, _, files in ancillary:
            self.files.extend(array("i", files))
        return content

    def send(self, data: memoryview, *, wait: bool) -> int:
        """As the base class says."""
        if wait:
            self._socket.sendall(data)
            return len(data)
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0


class TlsConnection(SocketConnection):
    """Encrypted bytes.

    Python's own sockets with TLS have no `MSG_DONTWAIT`, and leak where the other end is gone before the handshake.

    Args:
        context: whom it trusts, and what it shows.
        server_name: the name that the certificate of the other end must have; None on the side that has listened.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        super().__init__(connection)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._sealed = memoryview(b"")

    @property
    def unsent(self) -> bool:
        """As the base class says."""
        return bool(self._sealed) or bool(self._outgoing.pending)

    def shake_hands(self) -> bool:
        """As the base class says."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(wait=False)
                if not self._receive_sealed(wait=False):
                    return False
            except ssl.SSLError:
                self._flush(wait=False)  # tells the other end why
                raise
            else:
                self._flush(wait=False)
                return True

    def receive(self, most: int, *, wait: bool) -> bytes:
        """As the base class says."""
        content = bytearray()
        try:
            while len(content) < most:
                try:
                    part = self._tls.read(most - len(content))
                except ssl.SSLWantReadError:
                    self._flush(wait=False)
                    if not self._receive_sealed(wait=wait and not content):
                        break
                else:
                    if not part:  # the other end has said that nothing more comes
                        raise EOFError
                    content += part
        except (OSError, EOFError):
            if not content:  # otherwise who receives again hears of it
                raise
        return bytes(content)

    def send(self, data: memoryview, *, wait: bool) -> int:
        """As the base class says."""
        sent = 0
        while self._flush(wait=wait) and sent < len(data):
            end = min(sent + _SEALED, len(data))
            while sent < end:
                sent += self._tls.write(data[sent:end])
        return sent

    def _receive_sealed(self, *, wait: bool) -> bool:
        """Receive encrypted bytes; whether there were any."""
        try:
            content = self._socket.recv(_SEALED, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not content:
            raise EOFError
        self._incoming.write(content)
        return True

    def _flush(self, *, wait: bool) -> bool:
        """Send encrypted bytes; whether none are left."""
        while self.unsent:
            if not self._sealed:
                self._sealed = memoryview(self._outgoing.read())
            try:
                sent = self._socket.send(self._sealed, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            self._sealed = self._sealed[sent:]
        return True
