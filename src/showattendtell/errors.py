"""User-facing errors: one sentence that says how to fix the problem. Commands print it and exit with status 2."""

import os
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

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


def printable(text: str, longest: int = MAX_LENGTH) -> str:
    """Return a text as one line without control characters, cut after `longest` characters."""
    shown = text if len(text) <= longest else f"{text[:longest]}..."
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
def quiet_pipe() -> Iterator[None]:
    """Exit without a message where the reader of standard output is gone, as in `... --help | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):  # the pipe that broke is to another process
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it exits
        sys.exit(CLOSED_PIPE)
