"""The journal of a dispatcher, in a SQLite file: every change of its state is written before the answer is sent.

See `docs/design/service-journal.md`. The file holds a snapshot of the state, the entries
that came after it, each the changes that one message made, and the datasets' definitions beside them. SQLite keeps
entries whole or not at all, and gives the file to one process at a time. The number of the last entry is also kept in a
file beside it: see `journal_mark.py`.
"""

import logging
import os
import secrets
import sqlite3
import stat
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import StorageError
from penstock.paths import link_of_others, local_path
from penstock.service.dispatcher.journal_mark import FILE as MARK_FILE
from penstock.service.dispatcher.journal_mark import JournalMark
from penstock.service.dispatcher.machine.state import State
from penstock.service.dispatcher.machine.updates import DatasetDropped, DatasetKept, Stopping, Update
from penstock.service.security.private_files import who_may_write

FILE: Final = "journal.sqlite"

_logger = logging.getLogger(__name__)

_APPLICATION: Final = 0x50454E53
"""SQLite's number for the application that owns a file: "PENS"."""
_VERSION: Final = 4
_FIRST_COMPACTION_BYTES: Final = 1 << 20

_NAME_BYTES: Final = 16

_SCHEMA: Final = """
CREATE TABLE journal (name BLOB NOT NULL);
CREATE TABLE snapshot (number INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE entries (number INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE definitions (dataset_id TEXT PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL);
"""

_UNUSABLE: Final = (
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
"""Errors of SQLite about the disk or the rights of this process, not about what the files contain."""

_encode = msgspec.msgpack.Encoder().encode
_updates_of = msgspec.msgpack.Decoder(list[Update]).decode
_state_of = msgspec.msgpack.Decoder(State).decode


class Journal:
    """Keeps a dispatcher's changes in a directory, which belongs to this process until `close` or its death.

    Not for several threads at once.

    Args:
        directory: is made if need be.
        first: the state to begin with if there is no journal yet.

    Attributes:
        state: the state that was found, without any request to stop. found: whether there was a journal already.
        name: identifies this journal among all others.
        number: of its last entry.

    Raises:
        StorageError: the directory cannot be written, another dispatcher has it, other users may write there, or what
            is in it is damaged, has lost its end, or is not a journal of this version.
    """

    def __init__(self, directory: str | os.PathLike[str], first: State) -> None:
        self.path = Path(local_path(directory), FILE)
        self.found = self.path.exists()
        self._check_writers()
        if not self.found:
            self._create(first)
        self._connection = self._open_database()
        self.number = self._bytes = self._snapshot_bytes = 0  # of entries, since the snapshot
        with self._keeping_write_ahead_log():
            self._make_private()
            with self._explaining():
                self._check_kind()
                name = self._read_name()
                self.state = self._read()
            self._mark = self._open_mark(name)
        self.name = name.hex()

    def write(self, state: State, updates: Sequence[Update]) -> None:
        """Write the changes that are about to be made to `state`; on an error none of them is written.

        Raises:
            StorageError: they could not be written.
        """
        lasting = [update for update in updates if not isinstance(update, Stopping)]
        if not lasting:
            return
        body = _encode([_without_definition(update) for update in lasting])
        compacts = self._bytes + len(body) > max(_FIRST_COMPACTION_BYTES, 2 * self._snapshot_bytes)
        try:
            self._connection.execute("BEGIN")
            with self._connection:  # commits, or rolls back
                snapshot_bytes = self._compact(state) if compacts else self._snapshot_bytes
                self._append(lasting, body)
        except sqlite3.Error as error:
            raise StorageError(
                f"the dispatcher cannot write its journal {self.path}: {error}. The request was not carried out, "
                "and no other is before there is room and the file can be written again"
            ) from error
        self._bytes = len(body) if compacts else self._bytes + len(body)
        self._snapshot_bytes = snapshot_bytes
        self.number += 1
        try:
            self._mark.write(self.number)
        except OSError as error:  # the entry itself is written, so its changes are made
            _logger.error("the dispatcher cannot note how far its journal has come: %s", error)

    @property
    def size(self) -> int:
        """The size of its files, in bytes."""
        return sum(path.stat().st_size for path in self._files())

    def close(self) -> None:
        """Close the files. A second call does nothing."""
        self._connection.close()
        self._mark.close()

    def _append(self, updates: Sequence[Update], body: bytes) -> None:
        for update in updates:
            if isinstance(update, DatasetKept):
                row = (update.dataset_id, update.definition, zlib.crc32(update.definition))
                self._connection.execute("INSERT OR REPLACE INTO definitions VALUES (?, ?, ?)", row)
            elif isinstance(update, DatasetDropped):
                self._connection.execute("DELETE FROM definitions WHERE dataset_id = ?", (update.dataset_id,))
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (self.number + 1, body, zlib.crc32(body)))

    def _compact(self, state: State) -> int:
        """Replace all entries so far by a snapshot; returns its length."""
        body = _snapshot_of(state)
        self._connection.execute("DELETE FROM entries")
        self._connection.execute("DELETE FROM snapshot")
        self._connection.execute("INSERT INTO snapshot VALUES (?, ?, ?)", (self.number, body, zlib.crc32(body)))
        return len(body)

    # Opening

    def _create(self, first: State) -> None:
        """Make an empty journal under another name, so that its own name never refers to half a journal."""
        for left in (self.path.with_name(f"{FILE}-wal"), self.path.with_name(MARK_FILE)):
            if left.exists():
                raise StorageError(
                    f"{left} belongs to a journal that is missing: restore {self.path} from a copy, or "
                    "choose another work_dir"
                )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(prefix=".journal-", dir=self.path.parent) as directory:
                made = Path(directory, FILE)
                made.touch(mode=0o600)  # SQLite gives the files beside it the same mode
                with closing(sqlite3.connect(made)) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(_SCHEMA)
                    body = _snapshot_of(first)
                    connection.execute("INSERT INTO journal VALUES (?)", (secrets.token_bytes(_NAME_BYTES),))
                    connection.execute("INSERT INTO snapshot VALUES (0, ?, ?)", (body, zlib.crc32(body)))
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {_VERSION}")
                    connection.commit()
                os.link(made, self.path)
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, FileExistsError) and self.path.exists():  # another dispatcher has just made it
                return
            raise StorageError(f"the dispatcher cannot keep a journal in {self.path.parent}: {error}") from error

    def _check_writers(self) -> None:
        """Refuse files that other users may write, or may replace by links: the workers run the definitions in them."""
        if link := link_of_others(self.path):
            raise StorageError(f"the dispatcher does not work in {self.path.parent}: {link}")
        for path in (self.path.parent, *self._files()):
            if path.exists() and (others := who_may_write(path)):
                raise StorageError(
                    f"the dispatcher does not work in {self.path.parent}: its files decide which programs the data "
                    f"workers run, and could be written by {others}"
                )

    def _make_private(self) -> None:
        for path in self._files():
            if stat.S_IMODE(path.stat().st_mode) & (stat.S_IRGRP | stat.S_IROTH):
                _logger.warning("other users could read %s, and in it what datasets hold: they cannot any more", path)
                path.chmod(0o600)

    def _files(self) -> list[Path]:
        """The file, its mark, and the files that SQLite keeps beside it while it is open, or if it was not closed."""
        names = [*(f"{FILE}{ending}" for ending in ("", "-wal", "-shm", "-journal")), MARK_FILE]
        return [path for name in names if (path := self.path.with_name(name)).exists()]

    def _open_database(self) -> sqlite3.Connection:
        """Open the file and lock it against all other processes and connections."""
        with self._explaining():
            # Autocommit: this file begins transactions itself.
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with self._explaining():
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA synchronous = NORMAL")
                (application,) = connection.execute("PRAGMA application_id").fetchone()
                if application != _APPLICATION:
                    raise StorageError(f"{self.path} is not a dispatcher's journal: choose another work_dir")
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _keeping_write_ahead_log(self) -> Iterator[None]:
        """If the journal is refused, keep its write-ahead log, which SQLite would remove when it closes the file."""
        wal, kept = self.path.with_name(f"{FILE}-wal"), self.path.with_name(f".{FILE}-wal")
        kept.unlink(missing_ok=True)
        if wal.exists():
            os.link(wal, kept)
        try:
            yield
        except BaseException:
            self._connection.close()
            if kept.exists() and not wal.exists():
                kept.rename(wal)
            raise
        finally:
            kept.unlink(missing_ok=True)

    def _check_kind(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            raise StorageError(
                f"the journal {self.path} has version {version}, and this penstock reads version {_VERSION}: start the "
                "version that wrote it, or choose another work_dir"
            )
        (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StorageError(self._damaged(found))

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn what SQLite and msgspec raise into a `StorageError`."""
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            if "locked" in str(error):
                raise StorageError(
                    f"another dispatcher works in {self.path.parent}: stop it, or give this one another work_dir"
                ) from error
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _UNUSABLE:
                raise StorageError(
                    f"the dispatcher cannot use its journal {self.path}: {error}. Its disk is read-only, full or "
                    "broken, or its files may not be written; their content may be intact. "
                    "Start again when they can be written"
                ) from error
            raise StorageError(self._damaged(error)) from error

    def _damaged(self, reason: object) -> str:
        return (
            f"the journal {self.path} is damaged: {reason}. A dispatcher without it would hand out elements "
            "again that were read already: restore the file from a copy, or choose another work_dir to start over"
        )

    def _open_mark(self, name: bytes) -> JournalMark:
        """Open the mark beside the journal, which must not name a later entry.

        Raises:
            StorageError: it does, or it is damaged.
        """
        path = self.path.with_name(MARK_FILE)
        mark = JournalMark(path, name)
        if mark.number is not None and mark.number > self.number:
            mark.close()
            raise StorageError(
                f"the journal {self.path} has lost its end: entry {mark.number} was acknowledged, and the last one "
                f"that can be read is {self.number}. Damage to {FILE}-wal does that, a loss of power may. Restore "
                "the directory from a copy, or choose another work_dir to start over; to continue without the lost "
                f"entries, remove {path}: elements read after entry {self.number} are then handed out again"
            )
        if mark.number is None and self.number:
            _logger.warning("%s is missing: the journal beside it may have lost its end without a trace", path)
        try:
            mark.write(self.number)
        except OSError as error:
            mark.close()
            raise StorageError(f"the dispatcher cannot write {path}: {error}") from error
        return mark

    # Reading

    def _read_name(self) -> bytes:
        names = self._connection.execute("SELECT name FROM journal").fetchall()
        if len(names) != 1 or not isinstance(names[0][0], bytes) or len(names[0][0]) != _NAME_BYTES:
            raise StorageError(self._damaged("it has no name"))
        return bytes(names[0][0])

    def _read(self) -> State:
        """The state after the last whole entry."""
        snapshots = self._connection.execute("SELECT number, body, checksum FROM snapshot").fetchall()
        if len(snapshots) != 1:
            raise StorageError(self._damaged(f"it has {len(snapshots)} snapshots"))
        number, body, checksum = snapshots[0]
        if not isinstance(number, int) or number < 0:  # the description of the table may be damaged
            raise StorageError(self._damaged(f"its snapshot has the number {number!r}"))
        self.number = number
        state = _state_of(self._whole(body, checksum, f"snapshot {number}"))
        self._snapshot_bytes, self._bytes = len(body), 0
        rows = self._connection.execute("SELECT number, body, checksum FROM entries ORDER BY number")
        for number, body, checksum in rows:
            if number != self.number + 1:
                raise StorageError(self._damaged(f"entry {number} follows {self.number}"))
            self._replay(state, number, _updates_of(self._whole(body, checksum, f"entry {number}")))
            self.number, self._bytes = number, self._bytes + len(body)
        self._define(state)
        return state

    def _replay(self, state: State, number: int, updates: Sequence[Update]) -> None:
        try:
            for update in updates:
                update.apply(state)
        except (KeyError, IndexError, ValueError) as error:
            raise StorageError(self._damaged(f"entry {number} does not fit the state before it: {error!r}")) from error

    def _define(self, state: State) -> None:
        missing = set(state.datasets)
        for dataset_id, body, checksum in self._connection.execute("SELECT * FROM definitions"):
            if dataset_id in missing:
                missing.remove(dataset_id)
                state.datasets[dataset_id].definition = self._whole(body, checksum, f"dataset {dataset_id!r}")
        if missing:
            raise StorageError(self._damaged(f"dataset {min(missing)!r} is missing"))

    def _whole(self, body: Any, checksum: int, what: str) -> bytes:
        if not isinstance(body, bytes) or zlib.crc32(body) != checksum:
            raise StorageError(self._damaged(f"{what} is not as it was written"))
        return body


def _without_definition(update: Update) -> Update:
    return msgspec.structs.replace(update, definition=b"") if isinstance(update, DatasetKept) else update


def _snapshot_of(state: State) -> bytes:
    bare = {name: msgspec.structs.replace(dataset, definition=b"") for name, dataset in state.datasets.items()}
    return _encode(msgspec.structs.replace(state, datasets=bare, stopping=""))
