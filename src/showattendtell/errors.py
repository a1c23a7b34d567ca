"""What a user can mend is told in one sentence: every command prints a `UserError` and exits with status 2."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UserError(Exception):
    """A fault in the input. Its text is one sentence that names the file or value and says what to do."""

    def __init__(self, sentence: str):
        if sentence.startswith("Caught UserError in DataLoader worker"):  # torch puts the traceback before it
            sentence = sentence.strip().splitlines()[-1].partition("UserError: ")[2]
        super().__init__(sentence)


def listed(names: Sequence[str], shown: int = 3) -> str:
    """The first of the names, and `...` where there are more: `a.jpg, b.jpg, c.jpg, ...`."""
    return ", ".join([*names[:shown], *(["..."] if len(names) > shown else [])])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'soft'?` if something known is close to `name`, else the list of what is known."""
    choices = sorted(known)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; known are {', '.join(choices)}"
