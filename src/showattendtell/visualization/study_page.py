"""Results of a study: a table for the terminal, and a page that works offline."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import optuna.visualization as draw
import plotly.graph_objects as plotly
from optuna import Study
from optuna.importance import FanovaImportanceEvaluator
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from plotly.offline import get_plotlyjs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from showattendtell.runtime.files import atomic_write, duration
from showattendtell.visualization.rendering import fill

PAGE = "report.html"
"""Name of the page in the study's folder."""

NUM_BEST = 10
"""Number of best trials that are shown."""

FIGURES = {"bleu4": "BLEU-4 in validation", "cider": "CIDEr in validation", "nll": "-log p per word in validation"}
"""Metrics that trials can optimise, by their values of `monitor`, and their labels."""


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
        """The command that trains the best trial's model again."""
        return train_command(self.best[0]) if self.best else ""

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
        return median(seconds(trial) for trial in self.best) if self.best else 0.0


def summarize_study(study: Study, folder: Path) -> StudySummary:
    trials = study.get_trials(deepcopy=False)

    def those(state: TrialState) -> list[FrozenTrial]:
        return [trial for trial in trials if trial.state == state]

    maximize = study.direction == StudyDirection.MAXIMIZE
    best = sorted(those(TrialState.COMPLETE), key=lambda trial: trial.value or 0.0, reverse=maximize)
    failed = [trial for trial in those(TrialState.FAIL) if "fault" in trial.user_attrs]
    return StudySummary(study, folder, best, those(TrialState.PRUNED), failed, those(TrialState.RUNNING))


def seconds(trial: FrozenTrial) -> float:
    """Return the wall time of a trial: of its run if recorded, else from its proposal to its end."""
    until_end = trial.duration.total_seconds() if trial.duration else 0.0
    return trial.user_attrs.get("seconds", until_end)


def train_command(trial: FrozenTrial) -> str:
    """Return the command that repeats the trial outside of the study."""
    settings = [shlex.quote(f"{name}={value}") for name, value in trial.user_attrs["settings"].items()]
    return " ".join(["python -m showattendtell.train", *settings])


def print_study(summary: StudySummary) -> None:
    """Print the best, pruned, failed and running trials, and the command of the best."""
    console = Console(highlight=False)
    title = Text(f"{summary.study.study_name}: {_counts(summary)}")
    table = Table("trial", "figure", "time", "settings searched", title=title, title_justify="left")
    for trial in summary.best[:NUM_BEST]:
        searched = " ".join(f"{name}={value}" for name, value in trial.params.items())
        table.add_row(str(trial.number), f"{trial.value:.3f}", duration(seconds(trial)), Text(searched))
    console.print(table)
    lines = []
    if summary.pruned:
        early = duration(median(map(seconds, summary.pruned)))
        lines.append(f"pruned: {early} instead of {duration(summary.whole_time)} (medians)")
    for trial in summary.failed:
        lines.append(f"{summary.folder / str(trial.number)} failed: {trial.user_attrs['fault']}")
    if summary.running:
        lines.append(f"still running in other workers: trials {', '.join(str(one.number) for one in summary.running)}")
    if summary.best:
        lines.append(f"to train the best, {summary.folder / str(summary.best[0].number)}, on its own, run")
        lines.append(f"  {summary.command}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _counts(summary: StudySummary) -> str:
    names, counts = ("finished", "pruned", "failed", "running"), map(len, summary[2:])
    return ", ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True) if count) or "no trials"


def write_page(summary: StudySummary, path: Path) -> None:
    with atomic_write(path) as stream:
        stream.write(render(summary).encode())


def render(summary: StudySummary) -> str:
    """Return the summary as one HTML file with interactive figures."""
    return fill(
        "study.html",
        summary=summary,
        counts=_counts(summary),
        best=summary.best[:NUM_BEST],
        searched=list(dict.fromkeys(name for trial in summary.best for name in trial.params)),
        figures={title: figure.to_html(full_html=False, include_plotlyjs=False) for title, figure in _figures(summary)},
        plotly=get_plotlyjs(),
        seconds=seconds,
        duration=duration,
    )


def _figures(summary: StudySummary) -> list[tuple[str, plotly.Figure]]:
    """Return the figures for which there are enough trials, with their titles."""
    study, drawn = summary.study, []
    name = FIGURES[study.user_attrs["space"]["monitor"]]
    if summary.best:
        drawn.append(("The best so far", draw.plot_optimization_history(study, target_name=name)))
    if len({trial.value for trial in summary.best}) > 1:
        with suppress(RuntimeError):  # nearly equal values have no variance to explain
            evaluator = FanovaImportanceEvaluator(seed=0)
            importances = draw.plot_param_importances(study, evaluator=evaluator, target_name=name)
            drawn.append(("Which settings matter (fANOVA)", importances))
        drawn.append(("All trials, a line each", draw.plot_parallel_coordinate(study, target_name=name)))
    if any(trial.intermediate_values for trial in (*summary.best, *summary.pruned)):
        drawn.append(("Learning curves, by validations", draw.plot_intermediate_values(study).update_yaxes(title=name)))
    for _, figure in drawn:
        figure.update_layout(title=None, template="plotly_white", margin={"t": 30, "l": 60, "r": 30})
    return drawn
