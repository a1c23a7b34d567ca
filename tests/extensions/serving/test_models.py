"""The models of a server, without the server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_uploads import noise

from showattendtell.extensions.serving.models import RegisteredModel
from showattendtell.extensions.serving.schemas import CaptionRequest
from showattendtell.inference import pipeline
from showattendtell.inference.pipeline import load, stacked

PHOTOGRAPH = noise(90, 60)
SEARCH = {"min_length": 3, "max_length": 5, "allow_unk": False}


def test_requests_that_differ_in_their_seed_share_an_ensemble(checkpoints: list[Path], monkeypatch: pytest.MonkeyPatch):
    seeds = {None: 1, 5: 5, 6: 6}
    expected = {
        seed: load(checkpoints[1], attention_mode="sample", seed=same, **SEARCH)(PHOTOGRAPH)
        for seed, same in seeds.items()
    }
    model = RegisteredModel("hard", load(checkpoints[1], **SEARCH))
    built: list[Any] = []
    build = pipeline.ImageCaptionerEnsemble
    monkeypatch.setattr(pipeline, "ImageCaptionerEnsemble", lambda *given: built.append(given) or build(*given))
    given = [("a.png", PHOTOGRAPH)], stacked([model.pixels(PHOTOGRAPH)])
    for seed in (None, 5, 6, None, 5):
        [output] = model.describe(*given, CaptionRequest(seed=seed, attention="sample"))
        assert output.tokens == expected[seed].tokens
        np.testing.assert_allclose(output.attention, expected[seed].attention, atol=1e-6)
        np.testing.assert_allclose(output.log_probs, expected[seed].log_probs, atol=1e-5)
    assert len(built) == 1
    model.describe(*given, CaptionRequest(beam_size=2, seed=7))
    assert len(built) == 2
