"""Learning curves of a run, from the CSV file that every run writes."""

import csv
from pathlib import Path

import matplotlib.pyplot as plt

from showattendtell.visualization.figures import save_picture


def read_metrics(path: Path) -> dict[str, dict[int, float]]:
    """Return each metric's value by epoch (from 1)."""
    metrics: dict[str, dict[int, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and row["epoch"] and name not in ("epoch", "step"):
                    metrics.setdefault(name, {})[int(row["epoch"]) + 1] = float(value)
    return metrics


def draw_curves(metrics: dict[str, dict[int, float]], path: Path) -> None:
    """Draw the training and validation loss per word (left) and BLEU-4 of the validation captions (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for name, label in (("train/nll_per_word", "training"), ("val/nll_per_word", "validation")):
        points = metrics.get(name, {})
        left.plot(list(points), list(points.values()), marker=".", label=label)
    left.set(title="-log p per word", xlabel="epoch")
    left.legend()
    bleu = metrics.get("val/bleu4", {})
    right.plot(list(bleu), list(bleu.values()), marker=".", color="C2")
    if bleu:
        best = max(bleu, key=lambda epoch: bleu[epoch])
        right.annotate(f"{bleu[best]:.1f}", (best, bleu[best]), textcoords="offset points", xytext=(0, 5), ha="center")
    right.margins(y=0.15)
    right.set(title="BLEU-4 on validation, without brevity penalty", xlabel="epoch")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.xaxis.get_major_locator().set_params(integer=True)
    save_picture(figure, path, "hydra.run.dir to another folder", dpi=120)
