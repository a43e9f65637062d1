"""Plain and encrypted sockets whose other end may be slow or silent: no function waits except `wait`."""

import select
import socket
import ssl
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from os import close
from typing import Final

from penstock.runtime.forking import close_in_forked_processes

MOST_FILES: Final = 65
"""The largest number of files that one call can receive; Linux allows 253."""

_ANCILLARY: Final = socket.CMSG_SPACE(MOST_FILES * 4)
_KEEP_PRIVATE: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_TLS_BYTES: Final = 1 << 20
"""The number of encrypted bytes that are sent at once."""
_TLS_RECEIVED: Final = 1 << 18
"""The number of encrypted bytes that are received at once."""
_HANDSHAKE_RECEIVED: Final = 1 << 14
"""The same for callers that have not proved who they are yet."""

_PROTOCOL_ALERT: Final = b"\x15\x03\x03\0\2\2\x46"
"""TLS's alert for another version."""

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))


class SocketConnection(ABC):
    """A socket, which the connection then owns.

    Attributes:
        encrypted: whether the bytes are encrypted.
        files: descriptors that have arrived; code that takes one closes it.
        frame_keys: the keys of frames that are sent and of those received, from the secret and both random numbers.
        secret: the number of the listener's secret that the caller has proved to know.
    """

    encrypted = False

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        close_in_forked_processes(connection)
        self._socket = connection
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self.files: deque[int] = deque()
        self.secret = 0
        self.frame_keys = b"", b""

    @property
    def unsent(self) -> bool:
        """Return whether bytes that `send` has taken are still to be sent."""
        return False

    @property
    def unread(self) -> bool:
        """Return whether bytes have arrived that no selector reports."""
        return False

    @property
    def on_one_machine(self) -> bool:
        """Return whether both ends are processes of one machine, by the kind of socket."""
        return self._socket.family == socket.AF_UNIX

    @property
    def host(self) -> str:
        """The address of the other end's machine; "" for this one."""
        return "" if self.on_one_machine else str(self._socket.getpeername()[0])

    def notice_loss(self) -> None:
        """Send small frames at once, and raise an error half a minute after the other machine has vanished."""
        if self.on_one_machine:
            return
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):  # some systems lack this option
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def shake_hands(self) -> bool:
        """Continue the handshake, if there is one, without waiting; return whether it is complete.

        Raises:
            EOFError: the other end is closed.
            OSError: the other end is not trusted, or does not speak TLS.
        """
        return True

    def fileno(self) -> int:
        """The descriptor of the socket, for a selector."""
        return self._socket.fileno()

    def wait(self, until: float | None, *, to_send: bool = False) -> bool:
        """Wait until bytes have arrived or can be sent, or the connection has ended; return whether that is so.

        Args:
            until: a time of `time.monotonic`; None waits without a limit.
        """
        poll = self._readable
        if to_send:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(None if until is None else max(until - time.monotonic(), 0) * 1000))

    @abstractmethod
    def receive(self, most: int) -> bytes:
        """Receive up to `most` bytes without waiting; b"" if none have arrived.

        Raises:
            EOFError: the other end is closed.
            OSError: the connection is broken.
        """

    @abstractmethod
    def receive_into(self, buffer: memoryview) -> int:
        """Variant of `receive` that writes into memory; return the number of bytes."""

    @abstractmethod
    def send(self, parts: Sequence[memoryview]) -> int:
        """Send bytes without waiting; return the number of bytes that were taken.

        Raises:
            OSError: the other end is closed.
        """

    def send_with_files(self, data: memoryview, files: Sequence[int]) -> int:
        """Send descriptors with some of the bytes, or all; return their number. Without room for one, none are sent."""
        try:
            return socket.send_fds(self._socket, [data], list(files))
        except BlockingIOError:
            return 0

    def shut_input(self) -> None:
        """Receive nothing more, which the other end notices on one machine, and wake waiting threads."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def shut_down(self) -> None:
        """End the connection, and wake threads that wait for it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, and the descriptors that have arrived and were not taken."""
        self._socket.close()
        while self.files:
            close(self.files.popleft())


class PlainConnection(SocketConnection):
    """A connection without encryption."""

    def receive(self, most: int) -> bytes:
        """Same as in the base class."""
        try:
            content, ancillary, flags, _ = self._socket.recvmsg(most, _ANCILLARY, _KEEP_PRIVATE)
        except BlockingIOError:
            return b""
        self._note_files(ancillary, flags)
        if not content:
            raise EOFError
        return content

    def receive_into(self, buffer: memoryview) -> int:
        """Same as in the base class."""
        try:
            count, ancillary, flags, _ = self._socket.recvmsg_into([buffer], _ANCILLARY, _KEEP_PRIVATE)
        except BlockingIOError:
            return 0
        self._note_files(ancillary, flags)
        if not count:
            raise EOFError
        return count

    def _note_files(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        for _, _, files in ancillary:
            self.files.extend(array("i", files))
        if flags & socket.MSG_CTRUNC:
            raise OSError("this process may open no more files, so those that came were lost: raise `ulimit -n`")

    def send(self, parts: Sequence[memoryview]) -> int:
        """Same as in the base class."""
        try:
            return self._socket.sendmsg(parts)
        except BlockingIOError:
            return 0


class TlsConnection(SocketConnection):
    """Encrypted bytes.

    Python's own sockets with TLS leak where the other end is gone before the handshake.

    Args:
        context: the trusted authorities, and the certificate to show.
        server_name: the name that the certificate of the other end must have; None on the side that has listened.
    """

    encrypted = True

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        super().__init__(connection)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._sealed = memoryview(b"")

    @property
    def unsent(self) -> bool:
        """Same as in the base class."""
        return bool(self._sealed) or bool(self._outgoing.pending)

    @property
    def unread(self) -> bool:
        """Same as in the base class."""
        return bool(self._incoming.pending) or bool(self._tls.pending())

    def shake_hands(self) -> bool:
        """Same as in the base class."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive_sealed(_HANDSHAKE_RECEIVED):
                    return False
            except ssl.SSLError:
                if not self._outgoing.pending:  # as if the other end does not use TLS at all
                    self._outgoing.write(_PROTOCOL_ALERT)
                with suppress(OSError):
                    self._flush()  # sends the reason to the other end
                raise
            else:
                self._flush()
                return True

    def receive(self, most: int) -> bytes:
        """Same as in the base class."""
        buffer = bytearray(most)
        with memoryview(buffer) as view:
            count = self.receive_into(view)
        del buffer[count:]
        return bytes(buffer)

    def receive_into(self, buffer: memoryview) -> int:
        """Same as in the base class."""
        count = 0
        try:
            while count < len(buffer):
                try:
                    part = self._tls.read(len(buffer) - count, buffer[count:])
                except ssl.SSLWantReadError:
                    self._flush()
                    if not self._receive_sealed(_TLS_RECEIVED):
                        break
                else:
                    if not part:  # the other end has announced its end
                        raise EOFError
                    count += int(part)
        except (OSError, EOFError):
            if not count:  # otherwise the next call raises it
                raise
        return count

    def send(self, parts: Sequence[memoryview]) -> int:
        """Same as in the base class."""
        sent = 0
        for part in parts:
            for begin in range(0, len(part), _TLS_BYTES):
                if not self._flush():
                    return sent
                piece = part[begin : begin + _TLS_BYTES]
                while piece:
                    count = self._tls.write(piece)
                    sent, piece = sent + count, piece[count:]
        self._flush()
        return sent

    def _receive_sealed(self, most: int) -> bool:
        """Receive encrypted bytes; return whether there were any."""
        try:
            content = self._socket.recv(most)
        except BlockingIOError:
            return False
        if not content:
            raise EOFError
        self._incoming.write(content)
        return True

    def _flush(self) -> bool:
        """Send encrypted bytes; return whether none are left."""
        while self.unsent:
            if not self._sealed:
                self._sealed = memoryview(self._outgoing.read())
            try:
                sent = self._socket.send(self._sealed)
            except BlockingIOError:
                return False
            self._sealed = self._sealed[sent:]
        return True
