"""METEOR 1.5 (Denkowski and Lavie 2014) of captions, by the program in pycocoevalcap."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from pycocoevalcap.meteor.meteor import Meteor

from showattendtell.metrics.bootstrap import Array, SufficientStatistics
from showattendtell.metrics.tokenizers import ENGLISH, CaptionPair, MetricError, find_java
from showattendtell.text.tokenizers import are_unspaced


@dataclass(frozen=True, eq=False)
class MeteorScores(SufficientStatistics):
    """METEOR in percent, of the corpus, which is not the mean over the captions, and of each caption (N,)."""

    corpus: float
    by_image: Array

    def scores(self, copies: Array) -> dict[str, Array]:
        """Return the score of the corpus, plus how much the mean over the captions of a resample differs from theirs.

        The score of a resample itself would need another run of the program.
        """
        return {"meteor": self.corpus + (copies - 1) @ self.by_image / len(self.by_image)}

    def per_image(self) -> dict[str, Array]:
        return {"meteor": self.by_image}


def measure_meteor(pairs: Sequence[CaptionPair]) -> MeteorScores:
    """Return METEOR of a corpus and of its captions.

    Raises:
        MetricError: the captions are not in English, Java is missing, or the program fails.
    """
    if are_unspaced(pair.hypothesis.replace(" ", "") for pair in pairs):
        raise MetricError("METEOR has paraphrases of English only; these captions are in a script without spaces")
    java = find_java()
    # pycocoevalcap starts the `java` on PATH
    with patch.dict(os.environ, PATH=str(java.parent), JAVA_TOOL_OPTIONS=" ".join(ENGLISH)):
        meteor = Meteor()
    captions = {n: [_one_line(pair.hypothesis)] for n, pair in enumerate(pairs)}
    references = {n: list(map(_one_line, pair.references)) for n, pair in enumerate(pairs)}
    try:
        corpus, by_image = meteor.compute_score(references, captions)
    except (OSError, ValueError) as error:
        meteor.lock.release()  # held by compute_score, and awaited when `meteor` is deleted
        raise MetricError(f"METEOR ended without scores: {error}") from None
    return MeteorScores(100 * corpus, 100 * np.array(by_image))


def _one_line(caption: str) -> str:
    """Return a caption without line breaks and the separator of captions, which would shift all later answers, and with
    question marks for what UTF-8 cannot encode."""
    return " ".join(caption.encode(errors="replace").decode().replace("|||", "").split())
