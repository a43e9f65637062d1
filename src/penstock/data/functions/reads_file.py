"""`ps.files.reads_file`: marks a function that reads the file whose name is its argument."""

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, Final, TypeVar, cast

from penstock.errors import InvalidTypeError

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MARK: Final = "_penstock_reads_file"


def reads_file(function: _Function) -> _Function:
    """Mark a function as one that reads the file whose name is its argument.

    `map`, `flat_map` and `interleave` with such a function over names of files are divided among workers by file, as
    readers of files are: `AutoShardPolicy.FILE` and `ps.service.ShardingPolicy.FILE` give each worker some of the
    names, and it opens no other file. Without the mark, penstock cannot know which file a generator or a decoder of a
    library reads.

    Raises:
        InvalidTypeError: `function` is not callable.

    Example:
        >>> import pathlib, tempfile
        >>> import penstock as ps
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name, text in {"a.txt": "1 2", "b.txt": "3 4 5"}.items():
        ...     _ = (folder / name).write_text(text)
        >>> @ps.files.reads_file
        ... def numbers(name):
        ...     return ps.Dataset.from_generator(lambda: map(int, pathlib.Path(name).read_text().split()))
        >>> dataset = ps.Dataset.list_files(folder / "*.txt").interleave(numbers, cycle_length=2).batch(2)
        >>> for worker in range(2):
        ...     strategy = ps.HostStrategy(num_workers=2, worker_index=worker)
        ...     print([batch.values[0].tolist() for batch in strategy.distribute_dataset(dataset)])
        [[1], [2]]
        [[3], [4], [5]]
    """
    if not callable(function):
        raise InvalidTypeError(f"reads_file takes a function of the name of a file, got {function!r:.200}")

    @wraps(function)
    def read(*arguments: Any) -> Any:
        return function(*arguments)

    setattr(read, _MARK, function)
    return cast(_Function, read)


def is_file_reader(function: Callable[..., Any]) -> bool:
    """Return whether a function is marked by `reads_file`."""
    return hasattr(function, _MARK)


def unmarked(function: Any) -> Any:
    """Return the function inside a mark of `reads_file`; other functions unchanged, also wrappers of a marked one."""
    marked = getattr(function, _MARK, None) if isinstance(function, FunctionType) else None
    return marked if marked is not None and getattr(function, "__wrapped__", None) is marked else function
