import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from showattendtell.metrics import java_scores
from showattendtell.metrics.java import MetricError
from showattendtell.metrics.java_scores import measure_spice
from showattendtell.metrics.tokenizers import CaptionPair

PAIRS = [CaptionPair("a dog runs", ["the dog is running", "a brown dog"]), CaptionPair("", ["two men"])]
JARS = [
    "stanford-corenlp-3.6.0.jar",
    "stanford-corenlp-3.6.0-models.jar",
    "nashorn-core-15.4.jar",
    *(f"asm{part}-7.3.1.jar" for part in ("", "-analysis", "-commons", "-tree", "-util")),
]


def scores(image: int, f: float) -> dict:
    """What the jar writes of an image."""
    return {
        "image_id": image,
        "scores": {"All": {"pr": 1.0, "re": f / (2 - f), "f": f, "fn": 3, "numImages": 1, "fp": 0, "tp": 1}},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Named by the environment variable."""
    monkeypatch.setenv(java_scores.FOLDER, str(tmp_path))
    return tmp_path


def test_without_the_jars_the_reason_says_which_to_put_where(folder: Path):
    with pytest.raises(MetricError) as fault:
        measure_spice(PAIRS)
    assert "stanford-corenlp-3.6.0.jar, stanford-corenlp-3.6.0-models.jar, nashorn-core-*.jar" in str(fault.value)
    assert f"put them in {folder}" in str(fault.value)


def test_a_jar_that_fails_is_the_reason(folder: Path):
    """These ones are empty."""
    for jar in JARS:
        (folder / jar).touch()
    with pytest.raises(MetricError, match="SPICE ended with status 1: .*NoClassDefFoundError: edu/stanford/nlp"):
        measure_spice(PAIRS)


@pytest.fixture
def answering(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[dict]], list[dict]]], None]:
    """Puts a function in the place of the jar: from the images that it reads to the scores that it writes."""

    def answer_with(write: Callable[[list[dict]], list[dict]]) -> None:
        def scorer(name: str, arguments: list[str], time_limit: float) -> str:
            asked, out = Path(arguments[-4]), Path(arguments[-2])
            assert arguments[-5:] == ["edu.anu.spice.SpiceScorer", str(asked), "-out", str(out), "-silent"]
            assert f"{folder}/*" in arguments[arguments.index("-cp") + 1]
            out.write_text(json.dumps(write(json.loads(asked.read_text()))))
            return ""

        monkeypatch.setattr(java_scores, "run_java", scorer)

    for jar in JARS:
        (folder / jar).touch()
    return answer_with


def test_the_jar_reads_images_and_writes_their_scores(answering):
    read = []
    answering(lambda images: read.extend(images) or [scores(1, 0.125), scores(0, 0.25)])
    means = measure_spice(PAIRS)
    assert means.name == "spice"
    np.testing.assert_allclose(means.by_image, [25, 12.5])
    assert read == [
        {"image_id": 0, "test": "a dog runs", "refs": ["the dog is running", "a brown dog"]},
        {"image_id": 1, "test": "", "refs": ["two men"]},
    ]


def test_a_score_for_every_image_is_needed(answering):
    answering(lambda _: [scores(1, 0.5)])
    with pytest.raises(MetricError, match="SPICE scored 1 of 2 images"):
        measure_spice(PAIRS)
