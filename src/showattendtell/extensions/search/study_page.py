"""Results of a search: a table for the terminal, and an HTML page with a figure."""

import resource
import shlex
import signal
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

from matplotlib.figure import Figure
from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table
from rich.text import Text

from showattendtell.config.validation import reading
from showattendtell.errors import UserError, printable
from showattendtell.extensions.search.study import find_study
from showattendtell.runtime.files import atomic_write, duration
from showattendtell.visualization.figures import encode
from showattendtell.visualization.rendering import fill

TEMPLATE = Path(__file__).with_name("study.html")

PAGE = "report.html"
"""Name of the page in the study's folder."""

NUM_BEST = 10
"""Number of best trials that are shown."""

COLUMNS = 3
"""Number of settings in a row of the figure."""

FIGURES = {"bleu4": "BLEU-4", "cider": "CIDEr", "nll": "-log p per word"}
"""Metrics that trials can optimize, by their values of `monitor`, and their labels."""


class StudySummary(NamedTuple):
    """The trials of a study by their states; completed ones from the best on. Their runs are in `folder`."""

    study: Study
    folder: Path
    best: Sequence[FrozenTrial]
    pruned: Sequence[FrozenTrial]
    failed: Sequence[FrozenTrial]
    running: Sequence[FrozenTrial]

    @property
    def metric(self) -> str:
        return FIGURES[self.study.user_attrs["space"]["monitor"]]

    @property
    def counts(self) -> str:
        names = ("finished", "pruned", "failed", "running")
        counts = [f"{len(trials)} {name}" for name, trials in zip(names, self[2:], strict=True) if trials]
        return ", ".join(counts) or "no trials"

    @property
    def rows(self) -> list[list[str]]:
        """Number, metric, wall time and searched settings of the best trials."""
        return [
            [
                str(trial.number),
                f"{trial.value:.3f}",
                duration(seconds(trial)),
                " ".join(f"{name}={value}" for name, value in trial.params.items()),
            ]
            for trial in self.best[:NUM_BEST]
        ]

    @property
    def command(self) -> str:
        """The command that trains the best trial's model again, outside of the study."""
        settings = self.best[0].user_attrs["settings"] if self.best else {}
        arguments = [shlex.quote(f"{name}={value}") for name, value in settings.items()]
        return " ".join(["python -m showattendtell.train", *arguments])

    @property
    def notes(self) -> list[str]:
        """Sentences on the trials that are not completed."""
        notes = []
        if self.pruned:
            early, whole = (median(map(seconds, trials)) for trials in (self.pruned, self.best or self.pruned))
            notes.append(f"pruned: {duration(early)} instead of {duration(whole)} (medians)")
        for trial in self.failed:
            notes.append(f"{self.folder / str(trial.number)} failed: {trial.user_attrs['error']}")
        if self.running:
            numbers = ", ".join(str(trial.number) for trial in self.running)
            notes.append(f"still running in other workers: trials {numbers}")
        return notes


def summarize_study(study: Study, folder: Path) -> StudySummary:
    """Sort the trials of a study, whose runs are in `folder`."""
    trials = study.get_trials(deepcopy=False)
    by_state = {state: [trial for trial in trials if trial.state == state] for state in TrialState}
    maximize = study.direction == StudyDirection.MAXIMIZE
    best = sorted(by_state[TrialState.COMPLETE], key=lambda trial: trial.value or 0.0, reverse=maximize)
    failed = [trial for trial in by_state[TrialState.FAIL] if "error" in trial.user_attrs]
    return StudySummary(study, folder, best, by_state[TrialState.PRUNED], failed, by_state[TrialState.RUNNING])


def seconds(trial: FrozenTrial) -> float:
    """Return the wall time of a trial: of its run if recorded, else from its proposal to its end."""
    until_end = trial.duration.total_seconds() if trial.duration else 0.0
    return trial.user_attrs.get("seconds", until_end)


def print_study(summary: StudySummary) -> None:
    """Print the best, pruned, failed and running trials, and the command of the best."""
    console = Console(highlight=False)
    title = Text(printable(f"{summary.study.study_name}: {summary.counts}"))
    table = Table("trial", summary.metric, "wall time", "settings searched", title=title, title_justify="left")
    for row in summary.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)
    lines = summary.notes
    if summary.best:
        lines.append(f"to train the best, {summary.folder / str(summary.best[0].number)}, on its own, run")
        lines.append(f"  {summary.command}")
    for line in lines:
        console.print(printable(line), markup=False, soft_wrap=True)


def render(summary: StudySummary) -> str:
    """Return the summary as one HTML file."""
    figure = b64encode(draw_settings(summary)).decode() if summary.best else ""
    return fill(TEMPLATE, summary=summary, figure=figure)


def draw_settings(summary: StudySummary) -> bytes:
    """Return a figure of the values of the trials by each searched setting, as PNG."""
    names = dict.fromkeys(name for trial in summary.best for name in trial.params)
    rows = ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(9, 2.8 * rows), layout="constrained", dpi=150)
    series = {"pruned (last value)": summary.pruned, "completed": summary.best, "best": summary.best[:1]}
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows, COLUMNS, place, xlabel=name, ylabel=summary.metric)
        settings = [trial.params.get(name, 0) for trial in (*summary.pruned, *summary.best)]
        is_numeric = all(isinstance(setting, int | float) for setting in settings)
        for label, trials in series.items():
            shown = [trial for trial in trials if name in trial.params]
            values = [trial.params[name] if is_numeric else str(trial.params[name]) for trial in shown]
            axes.plot(values, [trial.value or 0.0 for trial in shown], "o", label=label)
        if getattr(summary.best[0].distributions.get(name), "log", False):
            axes.set_xscale("log")
        axes.tick_params("x", which="both", rotation=30, labelsize="small")
    figure.axes[0].legend(fontsize="small")
    return encode(figure)


SECONDS, MEMORY = 60, 4 * 2**30
"""The most time and memory, in bytes, that the report of a study takes: a query of its storage may have no end."""


def report_study(folder: Path, storage: str | None) -> None:
    """Print the results of the study in a folder, and write its page. Its content is trusted like code.

    Raises:
        UserError: it cannot be read, or not within `SECONDS` and `MEMORY`.
    """
    with ProcessPoolExecutor(1, get_context("fork"), initializer=_limit_resources) as pool:
        try:
            pool.submit(_read_and_report, folder, storage).result()
        except BrokenProcessPool:
            limits = f"{SECONDS} seconds or {MEMORY / 2**30:.0f} GB"
            raise UserError(f"the study in {folder} takes more than {limits}; restore a copy of it") from None


def _limit_resources() -> None:
    """Make the system end this process if it needs more than `SECONDS`, or `MEMORY` besides what its parent has."""
    signal.alarm(SECONDS)
    inherited = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (inherited + MEMORY, hard_limit))


def _read_and_report(folder: Path, storage: str | None) -> None:
    with reading(f"the study in {folder}"):
        report(find_study(folder, storage), folder)


def report(study: Study, folder: Path) -> None:
    """Print the results of a study, and write its page into its folder."""
    summary = summarize_study(study, folder)
    with atomic_write(folder / PAGE) as stream:
        stream.write(render(summary).encode())
    print_study(summary)
    print(f"{folder / PAGE} has more")
