"""SPICE (Anderson et al. 2016) of captions, by the jar in pycocoevalcap. The files that it needs are not installed."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pycocoevalcap.spice

from showattendtell.metrics.bootstrap import ImageMeans
from showattendtell.metrics.java import MetricError, run_java
from showattendtell.metrics.tokenizers import CaptionPair

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

TIME_LIMIT = 4 * 3600.0
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
        run_java("SPICE", [*scorer, str(captions), "-out", str(scores), "-silent"], TIME_LIMIT)
        answers = json.loads(scores.read_text(encoding="utf-8"))
    by_image = {item["image_id"]: item["scores"]["All"]["f"] for item in answers}  # F-scores of all tuples, 0 to 1
    if by_image.keys() != set(range(len(pairs))):
        raise MetricError(f"SPICE scored {len(by_image)} of {len(pairs)} images")
    return ImageMeans("spice", 100 * np.array([by_image[image] for image in range(len(pairs))], dtype=np.float64))
