"""Ways of writing captions, through the commands."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from runs import Run, assert_done

from showattendtell import load
from showattendtell.config.instantiate import build_option
from showattendtell.metrics.diversity import ending_rates
from showattendtell.visualization.rendering import EXAMPLES


def evaluated(run: Run, folder: Path, *settings: str) -> dict[str, Any]:
    result = folder / f"{uuid4()}.json"
    assert_done(run("evaluate", f"output={result}", "metrics=[bleu]", *settings))
    return json.loads(result.read_text())


@pytest.mark.slow
def test_a_model_in_ensemble_with_itself_scores_as_alone(run: Run, checkpoint: Path, folder: Path):
    alone = evaluated(run, folder, f"checkpoint={checkpoint}")
    assert_done(run("evaluate", "metrics=[bleu]", f"checkpoint=[{checkpoint},{checkpoint}]"))
    together = json.loads(checkpoint.with_name("results-test-ensemble.json").read_text())
    assert together["captions"] == alone["captions"]
    assert together["bleu4"] == alone["bleu4"]
    assert together["checkpoint_sha256"] == [alone["checkpoint_sha256"]] * 2
    assert "pointing_game" in alone.keys() - together.keys()


def test_several_captions_of_the_bundled_model_differ_and_end_as_sentences_do():
    captioner = load(decoding=build_option("decoding", "sample"), device="cpu")
    different = 0
    for output in captioner(sorted(EXAMPLES.iterdir())):
        captions = [caption.caption for caption in output.captions]
        assert len(captions) == 3
        different += len(set(captions))
        assert ending_rates(captions, [True] * 3)["dangling"] == 0  # none lacks its last word
    assert different >= 5  # of three photographs
