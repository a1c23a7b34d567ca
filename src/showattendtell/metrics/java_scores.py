"""METEOR 1.5 (Denkowski and Lavie 2014) and SPICE (Anderson et al. 2016) of captions, by the jars in pycocoevalcap.
The files that SPICE needs are not installed."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pycocoevalcap.spice
from pycocoevalcap.meteor import meteor as package

from showattendtell.metrics.bootstrap import Array, ImageMeans, SufficientStatistics
from showattendtell.metrics.java import MetricError, run_java
from showattendtell.metrics.tokenizers import CaptionPair

METEOR_JAR = Path(package.__file__).with_name(package.METEOR_JAR)
METEOR_TIME_LIMIT = 3600.0
"""Seconds; the jar reads its paraphrase tables in about 10, and then scores about 1,000 captions a second."""

NUM_STATISTICS, CHUNKS = 23, 20
"""Statistics of a caption, and the position of the number of chunks. Those before alternate between caption and
reference: 0 and 1 are the lengths, 2 and 3 the numbers of function words, 4 to 19 the matching words by matcher (exact,
stem, synonym, paraphrase), content and function words apart. 21 and 22 are the numbers of matching words in all."""

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
MATCHERS = (1.0, 0.6, 0.8, 0.6)
"""METEOR's parameters for English, and its weights of the matchers (Denkowski and Lavie 2014, Table 1)."""


@dataclass(frozen=True, eq=False)
class MeteorCounts(SufficientStatistics):
    """Statistics of the jar.

    by_image  (N, 23)
    """

    by_image: Array

    def scores(self, copies: Array) -> dict[str, Array]:
        """Return METEOR in percent, from the sums of the statistics.

        The fragmentation penalty grows with the chunks, runs of adjacent matching words. Like the jar, count 0 chunks
        instead of 1 for a caption that matches its reference completely, so that a perfect caption has no penalty.
        """
        added = self.by_image.copy()
        added[_is_perfect(added), CHUNKS] = 0
        return {"meteor": 100 * evaluate(copies @ added)}

    def per_image(self) -> dict[str, Array]:
        """Return METEOR of each caption in percent."""
        return {"meteor": 100 * evaluate(self.by_image)}


def measure_meteor(pairs: Sequence[CaptionPair]) -> MeteorCounts:
    """Return the statistics of every image.

    The jar answers each line "SCORE ||| reference ||| ... ||| caption" with those of the best reference.

    Raises:
        MetricError: the jar cannot be run.
    """
    requests = ""
    for pair in pairs:
        # a separator or a line break in a caption would shift all later answers
        sentences = [" ".join(text.replace("|||", "").split()) for text in (*pair.references, pair.hypothesis)]
        requests += " ||| ".join(["SCORE", *sentences]) + "\n"
    program = ["-Xmx2G", "-jar", str(METEOR_JAR), "-", "-", "-stdio", "-l", "en", "-norm"]
    answers = run_java("METEOR", program, METEOR_TIME_LIMIT, requests).splitlines()
    try:
        statistics = np.array([answer.split() for answer in answers], dtype=np.float64)
        return MeteorCounts(statistics.reshape(len(pairs), NUM_STATISTICS))
    except ValueError:
        raise MetricError(f"METEOR returned {answers[-1:]} instead of {NUM_STATISTICS} statistics a line") from None


def _is_perfect(statistics: Array) -> Array:
    """Return where (N, 23) a caption matches its reference completely: all words, in one chunk."""
    return (statistics[:, -2:] == statistics[:, :2]).all(axis=1) & (statistics[:, CHUNKS] == 1)


def evaluate(statistics: Array) -> Array:
    """Return the score of each row of statistics (R, 23), 0 to 1, equal to the jar's bit by bit:

    precision, recall = matches / length     content words count DELTA, function words 1 - DELTA
    F (1 - GAMMA fragmentation^BETA)         1 / F = (1 - ALPHA) / precision + ALPHA / recall
    """
    columns = statistics.T
    lengths, function_words = columns[:2], columns[2:4]
    matches = columns[4:CHUNKS].reshape(len(MATCHERS), 2, 2, -1)
    weighted: Array | float = 0.0
    for kind, share in enumerate((DELTA, 1 - DELTA)):  # the order of the jar's sum
        for weight, matched in zip(MATCHERS, matches[:, kind], strict=True):
            weighted = weighted + weight * matched * share
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = weighted / (DELTA * (lengths - function_words) + (1 - DELTA) * function_words)
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        fragmentation = columns[CHUNKS] / (columns[-2:].sum(axis=0) / 2)
    fragmentation[_is_perfect(statistics)] = 0
    # in higher precision, so that the power is rounded correctly, as Java's
    power = (fragmentation.astype(np.longdouble) ** BETA).astype(np.float64)
    return np.nan_to_num(mean * (1 - GAMMA * power))  # 0 without matches


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
