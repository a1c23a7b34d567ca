"""Run all unfinished recipes of a table, and write the table next to the paper's results."""

import re
from collections.abc import Sequence

from omegaconf import DictConfig

from showattendtell.config.command_line import quoted
from showattendtell.config.entry_point import entry_point


def quote_settings(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each setting in `settings=[a=1,b=[2,3]]` in quotes, which Hydra requires."""
    result = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "settings" and "=" in argument and value != "null":
            inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
            settings = re.split(r",\s*(?=[\"']?[+~]*[\w./]+=)", inner) if inner else []  # not within lists
            quoted_settings = (setting if setting[0] in "\"'" else quoted(setting) for setting in settings)
            argument = f"settings=[{','.join(quoted_settings)}]"
        result.append(argument)
    return result


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
    from showattendtell.extensions.reproduction.work import CommandRunner, Reproduction

    table = instantiate(config.table, _convert_="all")
    folder = as_typed(Path(config.output or f"runs/paper-{table.folder}").absolute())
    with reading(str(folder)):
        work = Reproduction(table, config, folder, CommandRunner())
        if work.runs:
            work.print_plan()
        if not config.plan:
            work.reproduce()


if __name__ == "__main__":
    main()
