"""Files that are whole or absent, and work that one process does at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write to a temporary file beside `path`, then move it there: whole or not at all.

    Text is UTF-8, its line ends as they are.

    Raises: OSError: no room or no permission; names the path.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: {path} was not written; what was stored before is whole, and the "
            "same command goes on from there",
        ) from error


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock file, waiting for it; the kernel drops it when the process ends, however."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
