"""Files appear whole or not at all, and the same content gives the same bytes."""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

from tracegen.errors import FileError

STDOUT = "-"


def write_text(target: str | Path, chunks: Iterable[str]) -> None:
    """Write text as UTF-8 to a file, gzipped where its name ends in .gz, or to stdout for "-".

    Raises:
        FileError: if the target cannot be written; what stood there is kept.
    """
    with opened(target) as file:
        compress = str(target).endswith(".gz")
        sink = _gzip(file) if compress else file
        for chunk in chunks:
            sink.write(chunk.encode())
        if compress:
            sink.close()


@contextmanager
def opened(target: str | Path) -> Iterator[IO[bytes]]:
    """A binary file that replaces the target when the block ends without an error.

    A target that is no regular file (a pipe, /dev/null) is written to as it is.

    Raises:
        FileError: if the target cannot be written.
    """
    path = Path(target)
    try:
        if str(target) == STDOUT:
            if sys.stdout is None:
                raise FileError("-: cannot be written: stdout is closed")
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif is_special(path):
            with path.open("wb") as file:
                yield file
        else:
            with _replacing(_resolved(path)) as file:
                yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FileError(f"{target}: cannot be written: {error.strerror or error}") from None


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:  # Python's word for it up to 3.12
        raise OSError("a loop of symbolic links") from None


def is_special(target: str | Path) -> bool:
    """Whether a target is there and no regular file: stdout, a pipe, /dev/null, a folder."""
    if str(target) == STDOUT:
        return True
    try:
        return Path(target).exists() and not Path(target).is_file()
    except OSError:  # a name too long, a folder closed to us: writing will say so
        return False


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _gzip(file: IO[bytes]) -> IO[bytes]:
    # Neither time nor name goes into the header, so the same trace gives the same bytes.
    return cast(IO[bytes], gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0))
