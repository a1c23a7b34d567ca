"""Run all unfinished recipes of a table, and write the table next to the paper's results."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point
from showattendtell.extensions.reproduction.tables import quote_settings


@entry_point("reproduce", expand=quote_settings)
def main(config: DictConfig) -> None:
    """Run the recipes and write the table.

    Raises:
        UserError: at the end, with a list of the runs that failed.
    """
    from pathlib import Path

    from hydra.utils import instantiate

    from showattendtell.config.entry_point import as_typed
    from showattendtell.config.validation import reading
    from showattendtell.extensions.reproduction.tables import make_runs
    from showattendtell.extensions.reproduction.work import CommandRunner, Reproduction, print_plan

    table = instantiate(config.table, _convert_="all")
    folder = as_typed(Path(config.output or f"runs/paper-{table.folder}").absolute())
    with reading(str(folder)):
        work = Reproduction(table, make_runs(table, config, folder), folder, config, CommandRunner())
        if work.runs:
            print_plan(table, work.runs, config)
        if not config.plan:
            work.reproduce()


if __name__ == "__main__":
    main()
