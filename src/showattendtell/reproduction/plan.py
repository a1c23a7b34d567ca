"""What there is to do for a table, shown before it is done."""

from collections.abc import Sequence

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from showattendtell.config.reproducing import PaperTable
from showattendtell.report.times import duration, read_times
from showattendtell.reproduction.runs import Run, budget, expected_seconds


def print_plan(table: PaperTable, runs: Sequence[Run], config: DictConfig) -> None:
    """A line for each run: how far it is, and how long its training takes yet; below them all together."""
    shown = Table(
        "recipe", "seed", "state", title=f"{table.name}: {len(runs)} run{'s' * (len(runs) > 1)}", title_justify="left"
    )
    shown.add_column("training left", justify="right")
    left = []
    for run in runs:
        minutes = None if budget(config) else table.recipes[run.recipe].minutes
        left.append(expected_seconds(run, runs, minutes))
        shown.add_row(run.recipe, str(run.seed), _state(run), _told(left[-1]))
    console = Console(highlight=False)
    console.print(shown)
    todo, unknown, known = sum(not run.is_finished for run in runs), left.count(None), sum(filter(None, left))
    if not todo:
        console.print("nothing to train: all runs are finished")
    elif not unknown and not known:
        console.print(f"nothing to train: {todo} to be scored")
    else:
        others = f" and {unknown} of unknown length" if unknown else ""
        time = f"about {duration(known)}{others}" if known else "for an unknown time"
        console.print(f"{todo} to do: they train {time}; storing grids and scoring come on top", soft_wrap=True)


def _state(run: Run) -> str:
    trained = "" if run.is_mean else f", {run.epochs} epochs in {duration(sum(read_times(run.folder)))}"
    if run.is_finished:
        return f"finished{trained}"
    if run.is_trained:
        return f"{'averaged' if run.is_mean else 'trained'}{trained}, to be scored"
    if run.is_mean:
        return "to be averaged"
    if run.is_begun:
        return f"{run.epochs} of {run.num_epochs or 'any number of'} epochs"
    return "to be trained"


def _told(seconds: float | None) -> str:
    return "?" if seconds is None else duration(seconds) if seconds else ""
