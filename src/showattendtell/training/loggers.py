"""The metrics of a run: `metrics.csv`."""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from showattendtell.runtime.files import atomic_write

METRICS = "metrics.csv"


class MetricsFile(Logger):
    """A run's `metrics.csv`: one row per call, one column per metric.

    Lightning's CSVLogger removes the existing file when a run resumes. When a column is added it overwrites the file,
    which a kill or a full disk then truncates.
    """

    name, version = "", ""

    def __init__(self, folder: Path):
        super().__init__()
        self.path = folder / METRICS
        self.rows: list[dict[str, Any]] = []
        self._has_warned = False

    def resume(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Go back to the rows at a checkpoint: those after it will be logged again."""
        self.rows = [dict(row) for row in rows]
        self.save()

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append({**metrics, "step": step})

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the run's configuration is already in the same folder."""

    @rank_zero_only
    def save(self) -> None:
        """Write all rows; a failure is reported once, and the next call writes these rows too."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, sorted({name for row in self.rows for name in row}))
        writer.writeheader()
        writer.writerows(self.rows)
        try:
            with atomic_write(self.path) as stream:
                stream.write(text.getvalue().encode())
        except OSError as error:
            if not self._has_warned:
                print(
                    f"warning: {self.path} cannot be written ({error.strerror}); the run continues, and the missing "
                    "rows are written with the next ones",
                    file=sys.stderr,
                )
            self._has_warned = True
