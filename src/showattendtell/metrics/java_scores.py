"""METEOR 1.5 (Denkowski and Lavie 2014) and SPICE (Anderson et al. 2016) of captions, by the jars in pycocoevalcap.
The files that SPICE needs are not installed.

The jar of METEOR is a server that reads lines. It answers

    SCORE ||| reference ||| ... ||| caption     with 23 statistics of the best reference, separated by spaces
    EVAL ||| statistics ||| statistics ...      with one line per statistics, their score, and one for their sum
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pycocoevalcap.spice
from pycocoevalcap.meteor import meteor as package
from rich.console import Console
from rich.progress import track

from showattendtell.metrics.bootstrap import Array, ImageMeans, SufficientStatistics
from showattendtell.metrics.java import LineServer, MetricError, java_command, run_java
from showattendtell.metrics.tokenizers import CaptionPair

METEOR_JAR = Path(package.__file__).with_name(package.METEOR_JAR)
METEOR_TIME_LIMIT = 120.0
"""Seconds between two answers; before the first one the jar reads its paraphrase tables, which takes about 10."""

BATCH_SIZE, MIN_BATCHES_SHOWN = 500, 5
"""Captions per request, and the number of requests from which on a progress bar is shown."""

NUM_STATISTICS = 23
MATCHES = slice(4, 20)
CHUNKS = 20
"""Positions of statistics. Those before `CHUNKS` alternate between caption and reference: 0 and 1 are the lengths, 2
and 3 the numbers of function words, 4 to 19 the matching words by matcher (exact, stem, synonym, paraphrase), content
and function words apart. 20 is the number of chunks, 21 and 22 are the numbers of matching words in all."""


def meteor_command() -> list[str]:
    """Return the command line of the server, with the options of pycocoevalcap."""
    return java_command("-Xmx2G", "-jar", str(METEOR_JAR), "-", "-", "-stdio", "-l", "en", "-norm")


SERVER = LineServer("METEOR", meteor_command, METEOR_TIME_LIMIT)


@dataclass(frozen=True, eq=False)
class MeteorCounts(SufficientStatistics):
    """Statistics of the jar.

    by_image  (N, 23)
    """

    by_image: Array

    def scores(self, copies: Array) -> dict[str, Array]:
        """Return METEOR in percent, which the jar computes from the sums of the statistics.

        Raises:
            MetricError: the jar fails.
        """
        *scores, _ = evaluate(copies @ summable(self.by_image))
        return {"meteor": 100 * np.array(scores)}

    def per_image(self) -> dict[str, Array]:
        """Return METEOR of each caption in percent.

        Raises:
            MetricError: the jar fails.
        """
        *scores, _ = evaluate(self.by_image)
        return {"meteor": 100 * np.array(scores)}


def measure_meteor(pairs: Sequence[CaptionPair]) -> MeteorCounts:
    """Return the statistics of every image.

    Raises:
        MetricError: the jar cannot be run.
    """
    requests = []
    for pair in pairs:
        # a separator or a line break in a caption would shift all later answers
        sentences = [" ".join(text.replace("|||", "").split()) for text in (*pair.references, pair.hypothesis)]
        requests.append(" ||| ".join(["SCORE", *sentences]))
    parts = [requests[first : first + BATCH_SIZE] for first in range(0, len(requests), BATCH_SIZE)]
    statistics = []
    for part in track(
        parts, "METEOR", console=Console(stderr=True), transient=True, disable=len(parts) < MIN_BATCHES_SHOWN
    ):
        for answer in SERVER.ask(part, len(part)):
            try:
                statistics.append(np.array(answer.split(), dtype=np.float64).reshape(NUM_STATISTICS))
            except ValueError:
                raise MetricError(f"METEOR returned {answer!r} instead of {NUM_STATISTICS} statistics") from None
    return MeteorCounts(np.array(statistics))


def summable(statistics: Array) -> Array:
    """Return statistics (N, 23) as the jar sums them over images.

    The fragmentation penalty grows with the chunks, runs of adjacent matching words. The jar counts 0 chunks instead of
    1 for a caption that matches its reference completely, so that a perfect caption has no penalty.
    """
    matches = statistics[:, MATCHES].reshape(len(statistics), -1, 2).sum(axis=1)
    perfect = (matches == statistics[:, :2]).all(axis=1) & (statistics[:, CHUNKS] == 1)
    added = statistics.copy()
    added[perfect, CHUNKS] = 0
    return added


def evaluate(statistics: Array) -> list[float]:
    """Return the score of each row of statistics (R, 23), 0 to 1, and as the last that of their sum."""
    rows = [" ".join(map(str, row)) for row in statistics.tolist()]
    return [float(answer) for answer in SERVER.ask([" ||| ".join(["EVAL", *rows])], len(rows) + 1)]


PACKAGE = Path(pycocoevalcap.spice.__file__).parent
FOLDER = "SHOWATTENDTELL_SPICE"
"""Environment variable with a folder of jars."""

NEEDED = (
    "stanford-corenlp-3.6.0.jar",
    "stanford-corenlp-3.6.0-models.jar",
    "nashorn-core-*.jar",
    *(f"asm{part}-[0-9]*.jar" for part in ("", "-analysis", "-commons", "-tree", "-util")),
)
"""Files that the jar needs. Stanford CoreNLP parses the captions. The jar writes its scores with a JavaScript engine,
which Java 15 removed; Nashorn replaces it, and depends on ASM."""

SPICE_TIME_LIMIT = 4 * 3600.0
"""Seconds; parsing all reference captions of a split can take hours."""


def measure_spice(pairs: Sequence[CaptionPair]) -> ImageMeans:
    """Return SPICE of every image.

    Raises:
        MetricError: a file is missing (the message names it and its folder), or the jar fails.
    """
    folders = [PACKAGE / "lib", *(Path(name) for name in [os.environ.get(FOLDER)] if name)]
    missing = [jar for jar in NEEDED if not any(any(folder.glob(jar)) for folder in folders)]
    if missing:
        raise MetricError(
            f"SPICE needs {', '.join(missing)}: put them in {folders[-1]}, or in a folder that {FOLDER} names"
        )
    class_path = os.pathsep.join([str(PACKAGE / "spice-1.0.jar"), *(str(folder / "*") for folder in folders)])
    with tempfile.TemporaryDirectory() as work:
        captions, scores = Path(work, "captions.json"), Path(work, "scores.json")
        requests = [{"image_id": n, "test": pair.hypothesis, "refs": pair.references} for n, pair in enumerate(pairs)]
        captions.write_text(json.dumps(requests), encoding="utf-8")
        scorer = ["-Xmx8G", "-cp", class_path, "edu.anu.spice.SpiceScorer"]
        run_java("SPICE", [*scorer, str(captions), "-out", str(scores), "-silent"], SPICE_TIME_LIMIT)
        answers = json.loads(scores.read_text(encoding="utf-8"))
    by_image = {item["image_id"]: item["scores"]["All"]["f"] for item in answers}  # F-scores of all tuples, 0 to 1
    if by_image.keys() != set(range(len(pairs))):
        raise MetricError(f"SPICE scored {len(by_image)} of {len(pairs)} images")
    return ImageMeans("spice", 100 * np.array([by_image[image] for image in range(len(pairs))], dtype=np.float64))
