"""Runs all recipes of a table that are not finished, and writes the table beside the paper's rows."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point
from showattendtell.config.reproducing import quote_settings


def run(config: DictConfig) -> None:
    """A `UserError` at the end tells of runs that failed."""
    from pathlib import Path

    from hydra.utils import instantiate

    from showattendtell.config.sweep import shown
    from showattendtell.reproduction.plan import print_plan
    from showattendtell.reproduction.runs import make_runs
    from showattendtell.reproduction.work import reproduce

    table = instantiate(config.table, _convert_="all")
    folder = shown(Path(config.output or f"runs/paper-{table.folder}").absolute())
    runs = make_runs(table, config, folder)
    if runs:
        print_plan(table, runs, config)
    if not config.plan:
        reproduce(table, runs, folder, config)


main = entry_point("reproduce", run, expand=quote_settings)

if __name__ == "__main__":
    main()
