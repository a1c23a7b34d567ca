"""A run in TensorBoard's event files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from showattendtell.training.loggers.dashboard import DashboardBackend, Histogram, ImagePanel


class TensorBoardBackend(DashboardBackend):
    """
    Args:
        folder: the folder of the event files; a resumed run gets a further file.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        self._folder, self._writer = folder, SummaryWriter(str(folder))
        self._writer.add_text("config", _as_code(json.dumps(config, indent=1)))

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_panels(self, panels: Sequence[ImagePanel], step: int) -> None:
        for panel in panels:
            said = "\n".join([f"**{panel.caption}**", "", *(f"- {reference}" for reference in panel.references)])
            self._writer.add_text(f"val/captions/{panel.image}", said, step)
            if panel.picture:
                self._writer.add_image(
                    f"val/captions/{panel.image}", np.asarray(panel.picture), step, dataformats="HWC"
                )
        self._writer.flush()

    def log_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        for name, (counts, edges) in histograms.items():
            middles = (edges[:-1] + edges[1:]) / 2
            self._writer.add_histogram_raw(
                name,
                min=edges[0],
                max=edges[-1],
                num=counts.sum(),
                sum=counts @ middles,
                sum_squares=counts @ middles**2,
                bucket_limits=edges[1:].tolist(),
                bucket_counts=counts.tolist(),
                global_step=step,
            )

    def log_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        self._writer.add_text("best", _as_code(json.dumps(dict(figures), indent=1)))

    def close(self, succeeded: bool) -> str:
        self._writer.close()
        return f"TensorBoard shows the run with\n  tensorboard --logdir {self._folder.parent}"

    def abandon(self) -> None:
        """Do nothing: the writer's thread ends with the process."""


def _as_code(text: str) -> str:
    """Format text so that Markdown leaves it unchanged."""
    return "\n".join(f"    {line}" for line in text.splitlines())
