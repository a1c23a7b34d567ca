"""Results of a search: a table for the terminal, and an HTML page with charts."""

import resource
import shlex
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

from optuna import Study
from optuna.distributions import CategoricalDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table
from rich.text import Text

from showattendtell.config.validation import reading
from showattendtell.errors import UserError, printable
from showattendtell.extensions.search.charts import Chart, Mark, axis_over, category_axis
from showattendtell.extensions.search.study import find_study
from showattendtell.runtime.files import atomic_write, duration
from showattendtell.visualization.rendering import fill

TEMPLATE = Path(__file__).with_name("study.html")

PAGE = "report.html"
"""Name of the page in the study's folder."""

NUM_BEST = 10
"""Number of best trials that are shown."""

FIGURES = {"bleu4": "BLEU-4 in validation", "cider": "CIDEr in validation", "nll": "-log p per word in validation"}
"""Metrics that trials can optimize, by their values of `monitor`, and their labels."""


class StudySummary(NamedTuple):
    """Summary of a study; times are in seconds."""

    study: Study
    folder: Path
    best: Sequence[FrozenTrial]
    pruned: Sequence[FrozenTrial]
    failed: Sequence[FrozenTrial]
    running: Sequence[FrozenTrial]

    @property
    def command(self) -> str:
        """The command that trains the best trial's model again, outside of the study."""
        settings = self.best[0].user_attrs["settings"] if self.best else {}
        arguments = [shlex.quote(f"{name}={value}") for name, value in settings.items()]
        return " ".join(["python -m showattendtell.train", *arguments])

    @property
    def evaluation(self) -> str | None:
        """The command that evaluates the best trial's checkpoint; None if the checkpoint is missing."""
        checkpoint = self.folder / str(self.best[0].number) / "best.ckpt"
        if not checkpoint.is_file():
            return None
        return f"python -m showattendtell.evaluate {shlex.quote(f'checkpoint={checkpoint}')}"

    @property
    def whole_time(self) -> float:
        """The median time of a completed trial."""
        return median(map(seconds, self.best)) if self.best else 0.0


def summarize_study(study: Study, folder: Path) -> StudySummary:
    """Sort the trials of a study, whose runs are in `folder`, by their states; completed ones from the best on."""
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
    title = Text(printable(f"{summary.study.study_name}: {_counts(summary)}"))
    metric = FIGURES[summary.study.user_attrs["space"]["monitor"]].removesuffix(" in validation")
    table = Table("trial", metric, "wall time", "settings searched", title=title, title_justify="left")
    for trial in summary.best[:NUM_BEST]:
        searched = " ".join(f"{name}={value}" for name, value in trial.params.items())
        table.add_row(str(trial.number), f"{trial.value:.3f}", duration(seconds(trial)), Text(printable(searched)))
    console.print(table)
    lines = []
    if summary.pruned:
        early = duration(median(map(seconds, summary.pruned)))
        lines.append(f"pruned: {early} instead of {duration(summary.whole_time)} (medians)")
    for trial in summary.failed:
        lines.append(f"{summary.folder / str(trial.number)} failed: {trial.user_attrs['error']}")
    if summary.running:
        lines.append(f"still running in other workers: trials {', '.join(str(one.number) for one in summary.running)}")
    if summary.best:
        lines.append(f"to train the best, {summary.folder / str(summary.best[0].number)}, on its own, run")
        lines.append(f"  {summary.command}")
    for line in lines:
        console.print(printable(line), markup=False, soft_wrap=True)


def _counts(summary: StudySummary) -> str:
    names = ("finished", "pruned", "failed", "running")
    counts = [f"{len(trials)} {name}" for name, trials in zip(names, summary[2:], strict=True) if trials]
    return ", ".join(counts) or "no trials"


def render(summary: StudySummary) -> str:
    """Return the summary as one HTML file, with a chart for each searched setting."""
    metric = FIGURES[summary.study.user_attrs["space"]["monitor"]]
    return fill(
        TEMPLATE,
        summary=summary,
        metric=metric,
        counts=_counts(summary),
        best=summary.best[:NUM_BEST],
        searched=_searched(summary),
        settings=[setting_chart(summary, metric, name) for name in _searched(summary)],
        legend=_legend(summary),
        seconds=seconds,
        duration=duration,
        shown=_shown,
    )


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
    """Make the system end this process if it needs more than `SECONDS` or `MEMORY`."""
    signal.alarm(SECONDS)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, hard_limit))


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


def setting_chart(summary: StudySummary, metric: str, name: str) -> Chart:
    """Return the values of the trials by the value of one setting."""
    trials = [trial for trial in (*summary.pruned, *reversed(summary.best)) if name in trial.params]
    trials = [trial for trial in trials if trial.value is not None]
    space, values = trials[0].distributions[name], [trial.params[name] for trial in trials]
    if isinstance(space, CategoricalDistribution):
        choices = [str(choice) for choice in space.choices]
        x, positions = category_axis(name, choices), [choices.index(str(value)) for value in values]
    else:
        x, positions = axis_over(name, values, log=bool(getattr(space, "log", False))), values
    y = axis_over(metric, [trial.value or 0.0 for trial in trials])
    marks = []
    for trial, position in zip(trials, positions, strict=True):
        kind = "best" if trial is summary.best[0] else "trial"
        if trial.state == TrialState.PRUNED:
            kind = "pruned"
        params = ", ".join(f"{name}={_shown(value)}" for name, value in trial.params.items())
        about = f"trial {trial.number}: {trial.value:.3f}; {params}"
        marks.append(Mark(kind, [(x.position(position), y.position(trial.value or 0.0))], about))
    return Chart(x, y, marks)


def _searched(summary: StudySummary) -> list[str]:
    """Return the searched settings that completed trials have, in their order."""
    return list(dict.fromkeys(name for trial in summary.best for name in trial.params))


def _legend(summary: StudySummary) -> dict[str, str]:
    legend = {"best": "best trial"}
    if len(summary.best) > 1:
        legend["trial"] = "completed trial"
    if summary.pruned:
        legend["pruned"] = "pruned trial, its last value"
    return legend


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
