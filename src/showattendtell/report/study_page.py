"""What a study has found: a table on the screen, and a page that needs no network."""

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

from showattendtell.files import whole_file
from showattendtell.report.filling import fill
from showattendtell.report.times import duration

PAGE = "report.html"
"""In the study's folder."""

NUM_BEST = 10
"""Trials that are shown as the best."""

FIGURES = {"bleu4": "BLEU-4 in validation", "cider": "CIDEr in validation", "nll": "-log p per word in validation"}
"""What trials may go by, as `selection` names it and as people read it."""


class Told(NamedTuple):
    """A study as people read it; times are in seconds."""

    study: Study
    folder: Path
    best: Sequence[FrozenTrial]
    pruned: Sequence[FrozenTrial]
    failed: Sequence[FrozenTrial]
    running: Sequence[FrozenTrial]

    @property
    def command(self) -> str:
        """That trains the best trial's model again."""
        return train_command(self.best[0]) if self.best else ""

    @property
    def evaluation(self) -> str | None:
        """The command that scores the best trial's checkpoint; None where that is not there."""
        checkpoint = self.folder / str(self.best[0].number) / "best.ckpt"
        if not checkpoint.is_file():
            return None
        return f"python -m showattendtell.evaluate {shlex.quote(f'checkpoint={checkpoint}')}"

    @property
    def whole_time(self) -> float:
        """The median time of a trial that came to its end."""
        return median(seconds(trial) for trial in self.best) if self.best else 0.0


def tell(study: Study, folder: Path) -> Told:
    trials = study.get_trials(deepcopy=False)

    def those(state: TrialState) -> list[FrozenTrial]:
        return [trial for trial in trials if trial.state == state]

    best = sorted(those(TrialState.COMPLETE), key=_value, reverse=study.direction == StudyDirection.MAXIMIZE)
    failed = [trial for trial in those(TrialState.FAIL) if "fault" in trial.user_attrs]
    return Told(study, folder, best, those(TrialState.PRUNED), failed, those(TrialState.RUNNING))


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None
    return trial.value


def seconds(trial: FrozenTrial) -> float:
    """The wall time of a trial: of its run where that has kept it, else from when it was proposed to its end."""
    kept: float | None = trial.user_attrs.get("seconds")
    if kept is not None:
        return kept
    return trial.duration.total_seconds() if trial.duration else 0.0


def train_command(trial: FrozenTrial) -> str:
    """The command that does outside of the study what the trial did."""
    settings = [shlex.quote(f"{name}={value}") for name, value in trial.user_attrs["settings"].items()]
    return " ".join(["python -m showattendtell.train", *settings])


def print_study(told: Told) -> None:
    """The best trials, what was ended early, what failed, and the command of the best."""
    console = Console(highlight=False)
    title = Text(f"{told.study.study_name}: {_counts(told)}")
    table = Table("trial", "figure", "time", "settings searched", title=title, title_justify="left")
    for trial in told.best[:NUM_BEST]:
        searched = " ".join(f"{name}={value}" for name, value in trial.params.items())
        table.add_row(str(trial.number), f"{trial.value:.3f}", duration(seconds(trial)), Text(searched))
    console.print(table)
    if told.pruned:
        early = duration(median(map(seconds, told.pruned)))
        console.print(f"ended early: {early} instead of {duration(told.whole_time)} (medians)", soft_wrap=True)
    for trial in told.failed:
        fault = f"{told.folder / str(trial.number)} failed: {trial.user_attrs['fault']}"
        console.print(fault, markup=False, soft_wrap=True)
    if told.running:
        numbers = ", ".join(str(trial.number) for trial in told.running)
        console.print(f"not at their end: trials {numbers}, which other workers run", soft_wrap=True)
    if told.best:
        best = told.folder / str(told.best[0].number)
        console.print(f"the best, {best}, is trained by itself with", markup=False, soft_wrap=True)
        console.print(f"  {told.command}", markup=False, soft_wrap=True)


def _counts(told: Told) -> str:
    counts = {"finished": told.best, "ended early": told.pruned, "failed": told.failed, "running": told.running}
    return ", ".join(f"{len(trials)} {name}" for name, trials in counts.items() if trials) or "no trials"


def write_page(told: Told, path: Path) -> None:
    with whole_file(path) as stream:
        stream.write(render(told).encode())


def render(told: Told) -> str:
    """One HTML file with all of it, and its figures, which answer to the mouse."""
    return fill(
        "study.html",
        told=told,
        counts=_counts(told),
        best=told.best[:NUM_BEST],
        searched=list(dict.fromkeys(name for trial in told.best for name in trial.params)),
        figures={title: figure.to_html(full_html=False, include_plotlyjs=False) for title, figure in _figures(told)},
        plotly=get_plotlyjs(),
        seconds=seconds,
        duration=duration,
    )


def _figures(told: Told) -> list[tuple[str, plotly.Figure]]:
    """What there are enough trials for, each below its title."""
    study, drawn = told.study, []
    name = FIGURES[study.user_attrs["space"]["selection"]]
    if told.best:
        drawn.append(("The best so far", draw.plot_optimization_history(study, target_name=name)))
    if len({trial.value for trial in told.best}) > 1:
        with suppress(RuntimeError):  # figures that are all but the same have no variance to explain
            evaluator = FanovaImportanceEvaluator(seed=0)
            importances = draw.plot_param_importances(study, evaluator=evaluator, target_name=name)
            drawn.append(("Which settings matter (fANOVA)", importances))
        drawn.append(("All trials, a line each", draw.plot_parallel_coordinate(study, target_name=name)))
    if any(trial.intermediate_values for trial in (*told.best, *told.pruned)):
        drawn.append(("Learning curves, by validations", draw.plot_intermediate_values(study).update_yaxes(title=name)))
    for _, figure in drawn:
        figure.update_layout(title=None, template="plotly_white", margin={"t": 30, "l": 60, "r": 30})
    return drawn
