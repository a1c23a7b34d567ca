"""Atomic writes, new files and folders, locks, checksums, and the log and the epoch times of a run."""

import csv
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import count
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, Literal, TextIO

from showattendtell.errors import UserError

LOG = "train.log"
"""What a run printed."""

UNFINISHED = ".tmp"
"""Suffix of a file that is being written."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without room."""

OUTPUT = "set output to another place"
"""What to do if a command cannot write its files."""

LOCK = ".lock"
"""Name of the lock file of a folder."""

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""Names of the checkpoints in a run's folder: the best one, and the last two, from which training resumes."""

WEIGHTS = "model.safetensors"
"""Name of the weights in a model folder, see `save_pretrained`."""

PIPE = "it is a pipe or device"
"""Why a file that is neither regular nor a folder is not read."""

LINK = "it is a symbolic link; remove it"
"""Why nothing is written to a file in a folder that may be from others."""

METRICS, TIMES = "metrics.csv", "times.csv"
"""Names of the files with the metrics and with the seconds of every epoch, in a run's folder."""

OVERWRITTEN = re.compile(r"^[^\n]*(\r|\x1b\[2K)|\x1b\[[\d;?]*[A-Za-z]", re.MULTILINE)
"""Text that a terminal overwrites, its colors, and movements of its cursor."""

BAR = re.compile(r"^[^━]*━.*\d/|images/s:")
"""A progress bar, which is drawn again and again."""


def expand_home(path: str | Path) -> Path:
    """Return a path in which `~` at its beginning is expanded; raise `UserError` if there is no such home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(
            f"{path}: there is no such home folder; set HOME, or SHOWATTENDTELL_CACHE for the cache"
        ) from None


def open_regular(path: str | Path, mode: str = "rb", **options: Any) -> Any:
    """`open` for files that may come from others, and for new ones in their folders.

    Raises:
        OSError: it is a folder; or a pipe or device, whose reading might never end; or a symbolic link, and is opened
            for writing.
    """
    return open(path, mode, opener=_open_regular, **options)


def _open_regular(path: str | Path, flags: int) -> int:
    refused = {errno.ENXIO: PIPE}  # a socket, and a pipe that nobody reads
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= os.O_NOFOLLOW
        refused[errno.ELOOP] = LINK
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        error.strerror = refused.get(error.errno or 0, error.strerror)
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else PIPE, str(path))
    return descriptor


def check_regular(path: str | Path) -> None:
    """Raise as `open_regular`; for libraries that open a path themselves."""
    open_regular(path).close()


def read_regular(path: str | Path) -> bytes:
    """Return the content of a file. Raise as `open_regular`."""
    with open_regular(path) as file:
        content: bytes = file.read()
    return content


def cache_folder(given: str | Path | None = None) -> Path:
    """Return the folder of the feature cache and drawings: `given`, or `$SHOWATTENDTELL_CACHE`, or its default."""
    return expand_home(given or os.environ.get("SHOWATTENDTELL_CACHE", "~/.cache/showattendtell"))


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; of a model folder, that of the file with its weights."""
    with open_regular(file / WEIGHTS if file.is_dir() else file) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def new_path(given: str | Path | None, default: str | Path = "") -> Path:
    """Check before a computation that its output can be written, and return the output's path.

    Args:
        given: the path that the user chose, if any.
        default: otherwise the path, or the first of `NAME-2`, `NAME-3`, ... if there is such a file.

    Raises:
        UserError: the given file exists, or the file cannot be written.
    """
    path = expand_home(given or default)
    if given and os.path.lexists(path):
        raise exists_error(path)
    free = next(name for name in _numbered(path) if not os.path.lexists(name))
    with write_errors(free, OUTPUT), NamedTemporaryFile(dir=free.parent):
        return free


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Make an empty file that is written in the `with` block, and removed if the block fails; yield its path.

    No file is replaced: if there is one, such as that of a command which ended before, the name is `NAME-2`, ...
    """
    with write_errors(path):
        for file in _numbered(path):
            with suppress(FileExistsError):
                file.touch(exist_ok=False)
                break
        try:
            yield file
        except BaseException:
            file.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(
    given: str | Path | None,
    default: str | Path = "",
    resume: bool = False,
    whole: bool = False,
    advice: str = OUTPUT,
) -> Iterator[Path]:
    """Make an output folder for this command alone in the `with` block; yield its path.

    Args:
        given: the path that the user chose, if any; the folder may exist if it is empty.
        default: otherwise the path, or the first of `NAME-2`, `NAME-3`, ... if it exists.
        resume: the folder may have files.
        whole: if the block fails, remove the folder with its files; an empty folder is always removed.
        advice: what to do if it cannot be written.

    Raises:
        UserError: the folder has files, another command writes to it, or it cannot be written.
    """
    path = expand_home(given or default)
    with write_errors(path, advice):
        for folder in _numbered(path):
            with suppress(*([] if given else [FileExistsError])):
                folder.mkdir(exist_ok=bool(given))
                break
    with open_folder(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another command is writing to {folder}; wait, or choose another folder") from None
        if not resume and any(folder.iterdir()):
            raise exists_error(folder)
        try:
            yield folder
        except BaseException:
            if whole:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            with suppress(OSError):
                folder.rmdir()


def _numbered(path: Path) -> Iterator[Path]:
    """Yield the path, and `NAME-2`, `NAME-3`, ... with its suffix."""
    yield path
    for number in count(2):
        yield path.with_stem(f"{path.stem}-{number}")


def exists_error(path: Path) -> UserError:
    """Return the error about an output that would replace a file or folder."""
    return UserError(f"{path} exists, and no file is replaced; choose another name")


@contextmanager
def write_errors(path: Path, advice: str = "choose another place") -> Iterator[None]:
    """Create the folder of a file, and report as a `UserError` that the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        space = "free some space, or " if error.errno in FULL else ""
        raise UserError(f"{path} cannot be written ({error.strerror}); {space}{advice}") from None


def lock_file(path: Path) -> TextIO | None:
    """Lock a file for this process until the returned stream is closed.

    The system releases the lock when the process ends or is killed. Forked processes do not inherit it. A process must
    not open the file a second time, since closing any stream of the file releases the lock.

    Returns:
        The stream; None if another process has the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file: TextIO = open_regular(path, "a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a folder for `fcntl.flock`; its lock is released at the end, even if processes were forked meanwhile.

    Unlike `lock_file`, this lock excludes other threads of the process too, and the folder may be read-only.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)


def fadvise(descriptor: int, reading: Literal["RANDOM", "WILLNEED"], start: int = 0, size: int = 0) -> None:
    """Advise the system how `size` bytes from `start` will be read, if it has `posix_fadvise`; 0 means to the end."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, getattr(os, f"POSIX_FADV_{reading}"))


@contextmanager
def atomic_write(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Open a stream whose content replaces a file when all of it is on disk.

    If writing fails, the previous file stays. If several processes write the same file, the last one wins. A process
    that is killed leaves `NAME.RANDOM.tmp` behind.

    Args:
        keep: new name of the previous file, which is otherwise deleted.

    Raises:
        OSError: the file cannot be written; `filename` is its path.
    """
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with partial.open("xb") as stream:  # a link of this name would not be followed
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if keep and path.exists():
            path.replace(keep)
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # errors of write() have none
        raise
    with suppress(OSError):  # synchronize the folder, too, since it has the new name; some file systems cannot
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_new(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write new files, or none of them, and return their paths, which are others where a file exists. See `new_file`.

    Raises:
        UserError: a file cannot be written.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(new_file(path)) for path in contents]
        for file, content in zip(files, contents.values(), strict=True):
            with write_errors(file), atomic_write(file) as stream:
                stream.write(content)
    return files


def write_times(seconds: Sequence[float], folder: Path) -> None:
    """Write the seconds of every epoch as CSV.

    Raises:
        OSError: the file cannot be written.
    """
    lines = [f"{epoch},{time:.3f}" for epoch, time in enumerate(seconds, start=1)]
    with atomic_write(folder / TIMES) as stream:
        stream.write("\n".join(["epoch,seconds", *lines, ""]).encode())


def read_times(folder: Path) -> list[float]:
    """Return the seconds of each finished epoch; an empty list if the file is missing or has another format."""
    try:
        text = read_regular(folder / TIMES).decode()
        return [float(line["seconds"]) for line in csv.DictReader(text.splitlines())]
    except (OSError, KeyError, ValueError, TypeError):
        return []


def duration(time: float) -> str:
    """Format seconds as `41 s`, `12 min` or `3.2 h`."""
    if time < 100:
        return f"{time:.0f} s"
    return f"{time / 60:.0f} min" if time < 6000 else f"{time / 3600:.1f} h"


class LoggedStream:
    """A stream that also writes its lines to a log, without colors and progress bars. A full disk does not stop it."""

    def __init__(self, stream: Any, log: Any):
        self._stream, self._log = stream, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        lines = re.findall(r"[^\n]*\n|[^\n]+", OVERWRITTEN.sub("", text))
        with suppress(OSError, ValueError):
            self._log.write("".join(line for line in lines if not BAR.search(line)).encode(errors="backslashreplace"))
        return self._stream.write(text)


@contextmanager
def logged(file: Path, describe: Callable[[Exception], str]) -> Iterator[None]:
    """Append what is printed to a file as well, and the description of an error that ends it."""
    if getattr(sys.stdout, "name", "") == str(file):  # a launcher already writes everything there
        yield
        return
    with (
        open_regular(file, "ab", buffering=0) as log,
        redirect_stdout(LoggedStream(sys.stdout, log)),
        redirect_stderr(LoggedStream(sys.stderr, log)),
    ):
        try:
            yield
        except Exception as error:
            with suppress(OSError):
                log.write(describe(error).encode())
            raise
