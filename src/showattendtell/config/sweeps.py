"""Results of a sweep: a line for each run, and a table at the end."""

import csv
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from showattendtell.settings import short_metric

RESULTS = "sweep.csv"
"""File in the folder of a sweep: the number, metric, its value and the settings of each run that has ended."""


def record_result(metric: str, value: float, settings: list[str]) -> None:
    """Add the result of this run, which may be on another machine, to the file of its sweep."""
    sweep = HydraConfig.get().sweep
    with Path(sweep.dir, RESULTS).open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow([sweep.subdir, metric, value, *settings])


class SweepTable(Callback):
    """At the end of a sweep of trainings, prints its runs with the settings in which they differ, the best first."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        if config.get("monitor"):
            print(
                f"each run prints into {config.hydra.job.name}.log in its folder in {config.hydra.sweep.dir}",
                flush=True,
            )

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        file = Path(config.hydra.sweep.dir, RESULTS)
        if config.hydra.runtime.choices["hydra/sweeper"] != "basic" or not file.is_file():
            return  # a search reports its study
        with file.open(encoding="utf-8", newline="") as lines:
            rows = {row[0]: row[1:] for row in csv.reader(lines)}  # a run that was resumed has its last row
        metric = next(iter(rows.values()))[0]
        common = set.intersection(*(set(settings) for _, _, *settings in rows.values()))
        table = Table("run", "settings", metric)
        values = {number: float(value) for number, (_, value, *_) in rows.items()}
        for number in sorted(values, key=values.__getitem__, reverse=short_metric(metric) != "nll"):
            own = [setting for setting in rows[number][2:] if setting not in common]
            table.add_row(number, " ".join(own), f"{values[number]:.3f}")
        Console(highlight=False, markup=False).print(table)
