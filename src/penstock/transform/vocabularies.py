"""Vocabularies: files of tokens, and the indices of tokens in them."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidTypeError, StorageError
from penstock.preprocessing.hashes import hash_buckets
from penstock.preprocessing.keys import MemoryKeys
from penstock.preprocessing.tokens import TEXT, decoded
from penstock.preprocessing.vocabulary_file import FileKeys, Keys
from penstock.transform.columns import Array, flat, in_rows_of, texts_of, to_array
from penstock.transform.functions import imported
from penstock.transform.vocabulary_files import read_tokens

_TOKENS_IN_MEMORY = 1 << 20
"""Longer vocabularies are looked up in their files, which all processes of a machine share."""


class Vocabulary:
    """The tokens of a file, one per line or record, numbered from 0.

    Args:
        path: the file.
        size: how many tokens it holds.
        with_frequency: whether each of them begins with the token's frequency and a space.
        records: whether the file holds TFRecords, not lines.
    """

    def __init__(self, path: str, size: int, with_frequency: bool, records: bool) -> None:
        self.path, self.size, self.with_frequency, self.records = path, size, with_frequency, records
        self._keys: Keys | None = None

    @property
    def keys(self) -> Keys:
        """The tokens for look-ups."""
        if self._keys is None:
            in_file = self.size > _TOKENS_IN_MEMORY and not self.with_frequency and not self.records
            self._keys = FileKeys(self.path) if in_file else MemoryKeys(self.tokens())
        return self._keys

    def tokens(self) -> pa.LargeBinaryArray:
        """The tokens in the order of their indices."""
        return pa.array(read_tokens(self.path, self.records, self.with_frequency), TEXT)

    def as_list(self) -> list[str]:
        """The tokens as strings."""
        return list(decoded(self.tokens(), "utf-8"))

    def __len__(self) -> int:
        return self.size

    def __getstate__(self) -> dict[str, Any]:
        """For another process: with the tokens, unless they are many; then the file must be reachable there too."""
        return {**self.__dict__, "_keys": self.keys}


def digest_of(path: str | os.PathLike[str]) -> str:
    """By which a file is known to be unchanged."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def read_vocabulary(path: Path, size: int, with_frequency: bool, records: bool, digest: str) -> Vocabulary:
    """A vocabulary that was learned.

    Raises:
        StorageError: its file is missing, or has changed since then.
    """
    if not path.is_file():
        raise StorageError(f"the vocabulary {path} is missing: copy the whole working directory, or analyze again")
    if digest_of(path) != digest:
        raise StorageError(
            f"the vocabulary {path} has changed since it was learned, so its indices would mean other tokens: "
            "restore the file, or analyze again in an empty directory"
        )
    return Vocabulary(str(path), size, with_frequency, records)


def name_of_copy(*, path: str, digest: str, size: int, records: bool = False) -> str:
    """The name of the copy of a user's vocabulary among those that were learned."""
    del size, records
    return f"given-{digest[:8]}-{Path(path).name}"


def given_vocabulary(*, path: str, digest: str, size: int, records: bool = False) -> Vocabulary:
    """A vocabulary in a file of the user's."""
    return read_vocabulary(Path(path), size, False, records, digest)


NUMBERED = ("apply_buckets", "apply_buckets_per_key", "hash_strings", "lookup", "lookup_by")
"""The operations whose results are buckets or indices."""


def number_of_values(*learned: Any, operation: str, arguments: dict[str, Any]) -> Any:
    """Return how many different values an operation can give; `learned` has its last input."""
    if operation == "hash_strings":
        return arguments["hash_buckets"]
    if operation == "lookup":
        return np.int64(len(learned[0]) + arguments["num_oov_buckets"])
    if operation == "lookup_by":
        return np.int64(_looked_up(np.zeros(0, object), learned[0], arguments["function"])[1])
    return np.int64(np.shape(learned[0])[-1] + 1)


def lookup(column: Any, vocabulary: Vocabulary, *, default_value: int, num_oov_buckets: int) -> Any:
    """The index of each token; of unknown ones a bucket behind the vocabulary, or the default."""
    texts = texts_of(column)
    found: Array = vocabulary.keys.find(texts).astype(np.int64) if len(vocabulary) else np.full(len(texts), -1)
    unknown = np.flatnonzero(found < 0)
    if len(unknown):
        if num_oov_buckets > 0:
            found[unknown] = len(vocabulary) + hash_buckets(texts.take(pa.array(unknown)), num_oov_buckets)
        else:
            found[unknown] = default_value
    return in_rows_of(column, found)


def lookup_by(column: Any, vocabulary: Vocabulary, *, function: str) -> Any:
    """The integer that a function of the user's gives each token."""
    tokens = to_array(flat(column))
    found = np.asarray(_looked_up(tokens, vocabulary, function)[0])
    if found.shape != tokens.shape or found.dtype.kind not in "iu":
        raise InvalidTypeError(
            f"lookup_fn={function} got {len(tokens)} tokens and returned {found.dtype} of shape {found.shape}: "
            "return an array with an integer for each, and the number of different ones"
        )
    return in_rows_of(column, found)


def _looked_up(tokens: Array, vocabulary: Vocabulary, function: str) -> tuple[Any, int]:
    """Call a user's function: return the integers of tokens, and the number of different ones."""
    found = imported(function)(tokens, vocabulary.path)
    if not isinstance(found, tuple) or len(found) != 2:
        raise InvalidTypeError(f"lookup_fn={function} returns integers and how many there are, got {found!r:.100}")
    return found[0], int(found[1])
