"""The log of a run: what it prints, in a file of its folder."""

import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

CONTROL = re.compile(r"[^\n]*(\r|\x1b\[2K)|\x1b\[[\d;?]*[A-Za-z]")
"""Text that a terminal overwrites, its colors, and movements of its cursor."""

BAR = re.compile(r"━.*\d/|images/s:")
"""A progress bar, which is drawn again and again."""


class LoggedStream(io.TextIOBase):
    """A stream that also writes its lines to a log, without colors and progress bars. A full disk does not stop it."""

    def __init__(self, stream: Any, log: Any):
        super().__init__()
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        lines = re.findall(r"[^\n]*\n|[^\n]+", CONTROL.sub("", text))
        with suppress(OSError, ValueError):
            self._log.write("".join(line for line in lines if not BAR.search(line)).encode())
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


@contextmanager
def logged(file: Path, describe: Callable[[Exception], str]) -> Iterator[None]:
    """Append what is printed to a file as well, and the description of an error that ends it."""
    if getattr(sys.stdout, "name", "") == str(file):  # a launcher already writes everything there
        yield
        return
    with (
        file.open("ab", buffering=0) as log,
        redirect_stdout(LoggedStream(sys.stdout, log)),
        redirect_stderr(LoggedStream(sys.stderr, log)),
    ):
        try:
            yield
        except Exception as error:
            with suppress(OSError):
                log.write(describe(error).encode())
            raise
