"""METEOR 1.5 (Denkowski and Lavie 2014) of captions, by the jar in pycocoevalcap.

The jar answers `SCORE ||| reference ||| ... ||| caption` with 23 statistics, and `EVAL ||| statistics ||| ...` with
one score for each and one for all together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pycocoevalcap.meteor import meteor as package

from showattendtell.metrics.bootstrap import Array, SufficientStatistics
from showattendtell.metrics.java import LineServer, MetricError, java_command
from showattendtell.metrics.tokenizers import CaptionPair

JAR = Path(package.__file__).with_name(package.METEOR_JAR)
TIME_LIMIT = 120.0
"""Seconds; the tables of paraphrases take some ten before the first answer."""

NUM_STATISTICS = 23
MATCHES = slice(4, 20)
CHUNKS = 20
"""Positions of the statistics, caption and reference alternating: lengths, function words, four kinds of matches for
two word classes; then the chunks, and the matching words."""


def meteor_command() -> list[str]:
    return java_command("-Xmx2G", "-jar", str(JAR), "-", "-", "-stdio", "-l", "en", "-norm")


SERVER = LineServer("METEOR", meteor_command, TIME_LIMIT)


@dataclass(frozen=True, eq=False)
class MeteorCounts(SufficientStatistics):
    """Statistics of the jar for each image (N, 23)."""

    by_image: Array

    def figures(self, copies: Array) -> dict[str, Array]:
        """Return METEOR in percent, computed by the jar from summed statistics; a `MetricError` if it fails."""
        *scores, _ = evaluate(copies @ summable(self.by_image))
        return {"meteor": 100 * np.array(scores)}


def measure_meteor(pairs: Sequence[CaptionPair]) -> MeteorCounts:
    """Measure METEOR; a `MetricError` if the jar cannot be run."""
    requests = []
    for pair in pairs:  # without the jar's separators and line breaks in the captions
        sentences = [" ".join(text.replace("|||", "").split()) for text in (*pair.references, pair.hypothesis)]
        requests.append(" ||| ".join(["SCORE", *sentences]))
    statistics = []
    for answer in SERVER.ask(requests, len(pairs)):
        try:
            statistics.append(np.array(answer.split(), dtype=np.float64).reshape(NUM_STATISTICS))
        except ValueError:
            raise MetricError(f"METEOR gave no statistics but {answer!r}") from None
    return MeteorCounts(np.array(statistics))


def summable(statistics: Array) -> Array:
    """Return statistics (N, 23) as the jar sums them: a caption equal to its reference (one chunk) has no chunk."""
    matches = statistics[:, MATCHES].reshape(len(statistics), -1, 2).sum(axis=1)
    perfect = (matches == statistics[:, :2]).all(axis=1) & (statistics[:, CHUNKS] == 1)
    added = statistics.copy()
    added[perfect, CHUNKS] = 0
    return added


def evaluate(statistics: Array) -> list[float]:
    """Return each row's score, 0 to 1, and that of all rows together."""
    rows = [" ".join(map(str, row)) for row in statistics.tolist()]
    return [float(answer) for answer in SERVER.ask([" ||| ".join(["EVAL", *rows])], len(rows) + 1)]
