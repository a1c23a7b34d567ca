"""Draw the reliability diagram and the curve of risk and coverage of a result file into docs/figures/trust.svg.

    python docs/trust_diagram.py results-test.json

The file is of `evaluate 'metrics=[bleu,cider,calibration]'`.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
matplotlib.rcParams["svg.hashsalt"] = "showattendtell"  # the same file each time
from matplotlib import pyplot as plt  # noqa: E402

FEW = 1e-3
"""Fraction of the words below which a bin is not drawn."""

FIGURE = Path(__file__).with_name("figures") / "trust.svg"


def main(file: str) -> None:
    result = json.loads(Path(file).read_text(encoding="utf-8"))
    figure, (diagram, curve) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
    diagram.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    for row, label, style in zip(result["reliability"], ("before", "after"), ("s:", "o-"), strict=True):
        points = zip(row["confidence"], row["accuracy"], row["counts"], strict=True)
        points = [(p, right) for p, right, count in points if count > FEW * sum(row["counts"])]
        error = result["ece_uncalibrated" if label == "before" else "ece"]
        diagram.plot(*zip(*points, strict=True), style, markersize=4, label=f"{label}: error {error:.1f} %")
    diagram.set(xlabel="probability of the predicted word", ylabel="fraction that is right", xlim=(0, 1), ylim=(0, 1))
    diagram.legend(frameon=False)
    kept = [(100 * row["coverage"], row["cider"]) for row in result["risk_coverage"]]
    curve.plot(*zip(*kept, strict=True), "o-", markersize=4)
    curve.axhline(kept[-1][1], color="0.6", linewidth=1, linestyle="--")
    curve.set(xlabel="captions kept, most confident first, %", ylabel="CIDEr", xlim=(0, 100), ylim=(0, None))
    for axes in (diagram, curve):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
