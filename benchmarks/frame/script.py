"""What every script does around its measurement.

A script has a docstring that says what it measures, a function `measure(options) -> Measured`, and at its end
`if __name__ == "__main__": main(measure)`.
"""

import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from datetime import datetime
from os.path import relpath
from typing import Any, NamedTuple

from rich.console import Console, RenderableType

from benchmarks.frame.figures import Change, Figure, better, changes, goal_table, in_unit, worse
from benchmarks.frame.machine import this_code, this_machine
from benchmarks.frame.results import RESULTS, Run, last_like, store

CANNOT_RUN = 4
"""The exit status of a script that needs what this machine has not."""

NARROW = 100
"""The columns that tables take where they are not printed on a terminal."""


class Measured(NamedTuple):
    """What a script prints, the figures that it stores, and sentences to print below."""

    tables: Sequence[RenderableType]
    figures: Sequence[Figure]
    notes: Sequence[str] = ()


class CannotRunError(Exception):
    """A sentence: what the script needs and this machine has not."""


Measure = Callable[[Namespace], Measured]


def console() -> Console:
    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(highlight=False, width=NARROW)


def main(measure: Measure, threads: int = 1, more_options: Callable[[ArgumentParser], Any] | None = None) -> None:
    """Measure, print, store, and compare with the last run.

    Args:
        measure: the script's own part.
        threads: those that torch computes with unless `--threads` says another number.
        more_options: adds options of the script's own; `measure` finds them in what it is given.
    """
    module = sys.modules[measure.__module__]
    assert module.__spec__ is not None
    options = parse(module.__spec__.name, module.__doc__ or "", threads, more_options)
    script, screen = module.__spec__.name.rpartition(".")[2], console()
    try:
        report(script, run_and_print(script, measure, options, screen), screen)
    except CannotRunError as reason:
        screen.print(f"{script}: cannot run here: {reason}")
        sys.exit(CANNOT_RUN)


def parse(
    program: str, description: str, threads: int, more_options: Callable[[ArgumentParser], Any] | None
) -> Namespace:
    parser = ArgumentParser(
        f"python -m {program}", description=description, formatter_class=RawDescriptionHelpFormatter
    )
    meaning = f"threads that torch computes with (default {threads})"
    parser.add_argument("--threads", type=int, default=threads, metavar="N", help=meaning)
    if more_options:
        more_options(parser)
    options = parser.parse_args()
    if options.threads < 1:
        parser.error(f"--threads must be 1 or more, got {options.threads}")
    return options


def run_and_print(script: str, measure: Measure, options: Namespace, screen: Console) -> Run:
    import torch

    torch.set_num_threads(options.threads)
    machine, code, began = this_machine(), this_code(), datetime.now().astimezone()
    screen.print(f"[bold]{script}[/] · {began:%Y-%m-%d %H:%M} · {machine}\n{code}", soft_wrap=True)
    started = time.perf_counter()
    measured = measure(options)
    seconds = time.perf_counter() - started
    for table in measured.tables:
        screen.print()
        screen.print(table)
    for note in measured.notes:
        screen.print(note)
    return Run(script, began, machine, code, vars(options), seconds, tuple(measured.figures))


def report(script: str, run: Run, screen: Console) -> None:
    """The goals, the comparison with the last run like it, and where the figures are now."""
    if any(figure.goal is not None for figure in run.figures):
        screen.print(goal_table((script, figure) for figure in run.figures))
    before = last_like(run, RESULTS)
    if before:
        when = f"{before.time:%Y-%m-%d %H:%M} (commit {before.code.commit or 'unknown'})"
        screen.print(compare(when, changes(before.figures, run.figures)))
    screen.print(f"took {run.seconds:.0f} s; figures in {relpath(store(run, RESULTS))}", soft_wrap=True)


def compare(when: str, found: Sequence[Change]) -> str:
    """Lines on what differs from the run of that time by more than a tenth."""
    lines = [tell(sign, change) for sign, part in (("worse", worse), ("better", better)) for change in part(found)]
    if not lines:
        return f"since the run of {when}: nothing better or worse by more than 10 %"
    return "\n".join([f"since the run of {when}:", *lines])


def tell(sign: str, change: Change) -> str:
    before, now, gain = change
    style = "bold red" if sign == "worse" else "green"
    return f"  [{style}]{sign}[/] {now.name}: {in_unit(before)} → {in_unit(now)} ({gain:.2f} times as good)"
