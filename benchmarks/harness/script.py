"""Command line, output and stored results of every benchmark.

A benchmark is a module with a docstring that says what it measures, a function `measure(options) -> Results`, and
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

from benchmarks.harness.figures import (
    Change,
    Figure,
    changes,
    figure_table,
    format_value,
    goal_table,
    improvements,
    regressions,
)
from benchmarks.harness.machine import this_code, this_machine
from benchmarks.harness.results import RESULTS, Run, last_comparable, store

CANNOT_RUN = 4
"""Exit status of a script that cannot run on this machine."""

WIDTH = 100
"""Columns of the output if it is not a terminal."""


class Results(NamedTuple):
    """Tables to print (default: all figures), figures to store, and notes to print."""

    tables: Sequence[RenderableType]
    figures: Sequence[Figure]
    notes: Sequence[str] = ()


class CannotRunError(Exception):
    """The reason why a script cannot run on this machine."""


Measure = Callable[[Namespace], Results]


def console() -> Console:
    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(highlight=False, width=WIDTH)


def main(measure: Measure, threads: int = 1, more_options: Callable[[ArgumentParser], Any] | None = None) -> None:
    """Measure, print, store, and compare with the last run.

    Args:
        measure: the script's own part.
        threads: default of `--threads`.
        more_options: adds options of the script, which `measure` receives.
    """
    module = sys.modules[measure.__module__]
    assert module.__spec__ is not None
    options = parse(module.__spec__.name, module.__doc__ or "", threads, more_options)
    script, screen = module.__spec__.name.rpartition(".")[2], console()
    try:
        report(run_and_print(script, measure, options, screen), screen)
    except CannotRunError as reason:
        screen.print(f"{script}: cannot run here: {reason}")
        sys.exit(CANNOT_RUN)


def parse(
    program: str, description: str, threads: int, more_options: Callable[[ArgumentParser], Any] | None
) -> Namespace:
    parser = ArgumentParser(
        f"python -m {program}", description=description, formatter_class=RawDescriptionHelpFormatter
    )
    meaning = f"number of threads of torch (default {threads})"
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
    results = measure(options)
    seconds = time.perf_counter() - started
    for table in results.tables or [figure_table(results.figures)]:
        screen.print()
        screen.print(table)
    for note in results.notes:
        screen.print(note)
    return Run(script, began, machine, code, vars(options), seconds, tuple(results.figures))


def report(run: Run, screen: Console) -> None:
    """Print the goals and the comparison with the last run, and store this one."""
    if any(figure.goal is not None for figure in run.figures):
        screen.print(goal_table((run.script, figure) for figure in run.figures))
    before = last_comparable(run, RESULTS)
    if before:
        when = f"{before.time:%Y-%m-%d %H:%M} (commit {before.code.commit or 'unknown'})"
        screen.print(compare(when, changes(before.figures, run.figures)))
    screen.print(f"took {run.seconds:.0f} s; figures in {relpath(store(run, RESULTS))}", soft_wrap=True)


def compare(when: str, found: Sequence[Change]) -> str:
    """Describe the changes of more than 10 % since an earlier run."""
    worse = [describe(change, "worse", "bold red") for change in regressions(found)]
    better = [describe(change, "better", "green") for change in improvements(found)]
    if not worse + better:
        return f"since the run of {when}: no change of more than 10 %"
    return "\n".join([f"since the run of {when}:", *worse, *better])


def describe(change: Change, kind: str, style: str) -> str:
    before, now, gain = change
    values = f"{format_value(before)} → {format_value(now)}"
    return f"  [{style}]{kind}[/] {now.name}: {values} ({gain:.2f} times as good)"
