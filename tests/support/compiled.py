"""Programs that JAX has compiled for tests: compiled once by all processes of a run, and kept for the next runs.

The processes of a run share a directory of their own, which begins with what is kept. JAX writes there in place, and
tests kill processes, so a file may be cut off: only whole files are kept when the run ends. JAX finds a program by all
that it was compiled from (the code, the options, its own version), so what is kept is never out of date.
"""

import atexit
import os
import shutil
import tempfile
import time
import zlib
from pathlib import Path

KEPT = Path(__file__).parents[2] / ".pytest_cache" / "compiled"
KEPT_SECONDS = 30 * 24 * 3600
"""After which a program is compiled anew: most of those that are as old are not used any more."""


def share_programs() -> None:
    """Let JAX, in this process and those that it starts, read and write compiled programs in one directory."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-compiled-"))
    if KEPT.exists():
        for file in KEPT.iterdir():
            if file.stat().st_mtime < time.time() - KEPT_SECONDS:
                file.unlink(missing_ok=True)
            else:
                shutil.copy(file, directory)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(directory)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # Otherwise options of programs, by which JAX finds them, hold the directory.
    os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"
    atexit.register(_keep, directory)


def _keep(directory: Path) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    for file in directory.iterdir():
        if not (KEPT / file.name).exists() and _is_whole(file):
            # Complete from the first moment that another run can see it.
            os.replace(shutil.copy(file, KEPT / f"{file.name}.{os.getpid()}"), KEPT / file.name)
    shutil.rmtree(directory, ignore_errors=True)


def _is_whole(file: Path) -> bool:
    """Whether a file holds all that was compressed into it: its last bytes are a sum of that."""
    try:
        zlib.decompress(file.read_bytes())
    except zlib.error:
        return False
    return True
