"""User-facing errors: one sentence that says how to fix the problem. Commands print it and exit with status 2."""

import os
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from io import TextIOWrapper

CLOSED_PIPE = 141  # exit status of a program whose reader has gone, as shells report it


MAX_LENGTH = 4000
"""Characters of a line of an error message; a value from a file may be of any length."""


class UserError(Exception):
    """An error in the input. Its message is one sentence that names the file or value and says what to do.

    Values from files are shown as they can be printed: escaped where a terminal would take them for commands, and cut.
    Several errors may be reported as one, on indented lines.
    """

    def __init__(self, sentence: str):
        if sentence.startswith("Caught UserError in DataLoader worker"):  # torch prepends the traceback
            sentence = sentence.strip().splitlines()[-1].partition("UserError: ")[2]
        super().__init__("\n  ".join(map(printable, sentence.split("\n  "))))


class MetricError(Exception):
    """Reason why a metric is not available, in one sentence."""


def printable(text: str, longest: int = MAX_LENGTH) -> str:
    """Return a text as one line without control characters, cut after `longest` characters."""
    shown = text if len(text) <= longest else f"{text[:longest]}..."
    if shown.isprintable():
        return shown
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in shown
    )


def listed(names: Sequence[str], shown: int = 3) -> str:
    """Return the first names, followed by `...` if there are more: `a.jpg, b.jpg, c.jpg, ...`."""
    return ", ".join([*names[:shown], *(["..."] if len(names) > shown else [])])


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'soft'?` if a known name is close to `name`, else the list of known names."""
    choices = sorted(names)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; available: {', '.join(choices)}"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def safe_output() -> Iterator[None]:
    """Write any text to standard output and error, also in processes that are started here: letters that the encoding
    lacks as escapes, and everything to nowhere where they are closed, as by `>&-`.

    Exit without a message where the reader of standard output is gone, as in `... --help | head`.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)
    os.environ["PYTHONIOENCODING"] = f"{sys.stdout.encoding}:backslashreplace"
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        is_gone = any(event & select.POLLERR for _, event in poll.poll(0))  # else a pipe to another process broke
        try:
            sys.stdout.flush()
        except OSError:  # as when Python exits, which would complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError) and is_gone:
            sys.exit(CLOSED_PIPE)
        raise
