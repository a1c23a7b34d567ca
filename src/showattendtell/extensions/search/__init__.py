"""Settings of `study`."""

from collections.abc import Sequence
from dataclasses import dataclass

from showattendtell.settings import Text


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Settings of `study`.

    Attributes:
        folder: folders of searches, runs/NAME-study; folder= may be left out.
        storage: the storage of the study, if it is not the database in this folder.
    """

    folder: Sequence[Text]
    storage: Text | None
