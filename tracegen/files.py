"""Files appear whole or not at all, and the same content gives the same bytes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, takewhile
from pathlib import Path
from typing import IO, BinaryIO, NoReturn, cast

from tracegen.errors import FileError

STDOUT = "-"


def check_path(name: str, given: object) -> None:
    """Refuse what is given in a path's place and is none.

    Raises:
        FileError: saying what it is.
    """
    if not isinstance(given, str | os.PathLike):
        raise FileError(f"{name}: {type(given).__name__} is no path; give a str or a Path")


def with_endings(name: str | Path, endings: Iterable[str]) -> str:
    """The files that have this name and an ending, as `mine.py or mine.csv`; empty if none."""
    return " or ".join(file for end in endings if os.path.isfile(file := f"{name}{end}"))


def write_text(target: str | Path, chunks: Iterable[str], rest: Iterable[str] = ()) -> None:
    """Write text as UTF-8 to a file, gzipped where its name ends in .gz, or to stdout for "-".

    Args:
        target: a path, or "-".
        chunks: the text.
        rest: what follows it. Where there is a core to spare it is made meanwhile.

    Raises:
        FileError: if the target cannot be written; what stood there is kept.
    """
    with opened(target) as file:
        if str(target).endswith(".gz"):
            with _gzip(file) as sink:
                _write(sink, chain(chunks, rest))
        elif rest and not is_special(target) and _can_fork():
            _write_both(file, chunks, rest, _resolved(Path(target)).parent)
        else:
            _write(file, chain(chunks, rest))


def _write(file: IO[bytes], chunks: Iterable[str]) -> None:
    for chunk in chunks:
        file.write(chunk.encode())


def _can_fork() -> bool:
    """Whether a second process has a core of its own, and no thread of this one could be torn."""
    if not sys.platform.startswith("linux"):
        return False
    return threading.active_count() == 1 and len(os.sched_getaffinity(0)) > 1


def _write_both(file: IO[bytes], chunks: Iterable[str], rest: Iterable[str], folder: Path) -> None:
    """Write the chunks while a child writes the rest to a file without a name; then append it.

    That takes the room of the rest twice: where there is none, the rest is made again, here.

    Raises:
        OSError: what stopped the child.
    """
    with _without_name(folder) as beside:
        # Neither is to stop between the fork and what ends the child; it ends with its parent.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if not (child := os.fork()):
            _write_and_exit(beside, rest)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _write(file, chunks)
            _, status = os.waitpid(child, 0)
        except BaseException:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            raise
        file.flush()
        error = os.waitstatus_to_exitcode(status)
        if error in _NO_ROOM or not (error or _fits_again(beside)):
            beside.truncate(0)
            _write(file, rest)
        elif error:
            raise (
                OSError(error, os.strerror(error))
                if error > 0
                else ChildProcessError(error, "killed")
            )
        else:
            done = 0
            while part := os.sendfile(file.fileno(), beside.fileno(), done, _MUCH):
                done += part


_MUCH = 1 << 30  # bytes: Linux takes fewer than 2 GiB at a time
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def _fits_again(file: IO[bytes]) -> bool:
    """Whether the disk that a file is on has room for as much once more."""
    disk = os.fstatvfs(file.fileno())
    return os.fstat(file.fileno()).st_size <= disk.f_bavail * disk.f_frsize


def _write_and_exit(file: IO[bytes], chunks: Iterable[str]) -> NoReturn:
    """As the child: say with the exit code what went wrong, and leave the rest to the parent."""
    code, parent = errno.EIO, os.getppid()
    _UNFINISHED.clear()  # they are the parent's
    try:
        _write(file, takewhile(lambda _: os.getppid() == parent, chunks))
        file.flush()
        code = 0
    except OSError as error:
        code = error.errno or code
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


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
        raise FileError(f"{target}: cannot be written: {_why(path, error)}") from None


def check_target(target: str | Path) -> None:
    """Before long work whose result goes there.

    Raises:
        FileError: if the target cannot be written.
    """
    from tempfile import TemporaryFile

    path = Path(target)
    try:
        if str(target) != STDOUT and path.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not is_special(target):
            TemporaryFile(dir=_resolved(path).parent).close()
    except OSError as error:
        raise FileError(f"{target}: cannot be written: {_why(path, error)}") from None


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return f"there is no folder {path.parent}"
    return error.strerror or str(error)


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
    name = _beside(path.parent, path.name)
    with _gone_if_killed(name):
        handle = _new(name)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            os.chmod(name, path.stat().st_mode if path.exists() else 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


_UNFINISHED: set[Path] = set()
_KILLS = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))]


@contextmanager
def _gone_if_killed(name: Path) -> Iterator[None]:
    """Within the block a signal that ends the process removes the file first.

    Signals that something else is done about are left alone, and all outside the main thread.
    """
    ours: list[signal.Signals] = []
    _UNFINISHED.add(name)
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _KILLS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    ours.append(number)
                    signal.signal(number, _killed)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        _UNFINISHED.discard(name)


def _killed(number: int, _: object) -> None:
    for name in tuple(_UNFINISHED):
        with suppress(OSError):
            os.unlink(name)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _beside(folder: Path, name: str) -> Path:
    """A name that no file has: `tempfile`'s way, which takes long to import."""
    return folder / f".{name}.{os.urandom(6).hex()}"


def _new(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)


def _without_name(folder: Path) -> BinaryIO:
    path = _beside(folder, "rest")
    with _gone_if_killed(path):
        handle = _new(path)
        os.unlink(path)
    return os.fdopen(handle, "w+b")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _gzip(file: IO[bytes]) -> IO[bytes]:
    # Neither time nor name goes into the header, so the same trace gives the same bytes.
    import gzip

    return cast(IO[bytes], gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0))
