"""Write a file whole or not at all: a temporary file beside it, flushed to disk, then renamed over it."""

import os
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a kill, never meets half a file.

    The temporary file's name starts with a dot, which Arrow's directory readers skip.

    Raises:
        OSError: the folder cannot be made or written; the old file, if any, is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
