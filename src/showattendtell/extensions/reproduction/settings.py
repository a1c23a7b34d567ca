"""Settings of `reproduce`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from showattendtell.settings import Seed, Text


@dataclass
class ReproduceConfig:
    """Settings of `reproduce`.

    Attributes:
        table: the table to reproduce.
        recipes: the recipes of the table to run; by default all. [] runs none, for the table of finished runs.
        seeds: the seeds of the runs; the table's own by default.
        settings: arguments of train for all runs, as [trainer.max_epochs=1,cache=DIR].
        plan: only print which runs are left to do.
        output: the folder of the runs and the table; runs/paper-FOLDER of the table by default.
    """

    table: Text
    recipes: Text | Sequence[Text] | None
    seeds: Annotated[Sequence[Seed], Field(min_length=1)] | None
    settings: Text | Sequence[Text]
    plan: bool
    output: Text | None
