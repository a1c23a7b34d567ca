"""Calibrations: fitted, stored, and what they say of captions."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit
from small_checkpoints import save
from small_models import small_model

from showattendtell import load
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.confidence import Confidence, rate_captions, unit_mean
from showattendtell.errors import UserError
from showattendtell.extensions.reliability.confidence import (
    calibration_errors,
    fit_curve,
    principal_directions,
    word_log_probs,
    write_calibrated,
)
from showattendtell.loading.checkpoints import CONFIDENCE
from showattendtell.loading.models import average, load_model, save_model_folder
from showattendtell.types import Caption, Example

FIGURES = Path(__file__).parents[3] / "docs/figures"


def made_up(width: int, curve: Sequence[float] = (0.8, 0.4, -0.5), threshold: float = 0.3) -> Confidence:
    generator = torch.Generator().manual_seed(0)
    mean, directions = principal_directions(unit_mean(torch.rand(40, 3, width, generator=generator)))
    return Confidence(torch.tensor(curve), mean, directions, torch.tensor(threshold))


def test_a_planted_curve_is_found():
    """Words of which the most probable one is right with the calibrated probability."""
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(40_000, 5, generator=generator)).log_softmax(dim=1)
    p = log_p.max(dim=1).values.double().exp().numpy()
    q = expit(0.8 * np.log(p) - 0.4 * np.log1p(-p) - 0.5)
    is_right = torch.rand(len(q), generator=generator).numpy() < q
    targets = np.where(is_right, log_p.argmax(dim=1), log_p.argmin(dim=1))
    a, b, c = fit_curve(log_p, torch.from_numpy(targets)).tolist()
    found = expit(a * np.log(p) - b * np.log1p(-p) + c)
    assert np.abs(found - q).max() < 0.02


def test_calibration_errors_worked_by_hand():
    """Two words of p 0.9, one of them right, and one of 0.6 that is right."""
    log_p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]).log()
    errors = calibration_errors([(log_p, torch.tensor([0, 1, 0]))], made_up(6, [1, 1, -1]))
    # odds of 9 become 9 / e, which is p 0.768; the word of p 0.6 cannot fall below 0.5
    surer = 1 / (1 + math.e / 9)
    assert errors["ece"] == pytest.approx(100 * (2 * (surer - 0.5) + (1 - 0.5)) / 3)
    assert errors["ece_uncalibrated"] == pytest.approx(100 * (2 * (0.9 - 0.5) + (1 - 0.6)) / 3)


def test_principal_directions_are_those_of_the_covariance():
    features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 7)
    mean, directions = principal_directions(features)
    values, vectors = np.linalg.eigh(np.cov(features.numpy().T))
    assert directions.shape == (6, 3)
    overlap = np.abs(vectors[:, np.argsort(-values)[:3]].T @ directions.numpy())
    np.testing.assert_allclose(overlap, np.eye(3), atol=2e-3)
    torch.testing.assert_close(mean, features.mean(dim=0))


@torch.no_grad()
def test_the_words_of_the_references_are_scored_once():
    model = small_model(seed=2)
    grids = torch.rand(3, 4, model.encoder.dim, generator=torch.Generator().manual_seed(2))
    examples = [Example(str(i), "", (Caption(("a", "dog")),)) for i in range(3)]
    words = word_log_probs(model, lambda positions, draw=None: grids[list(positions)], examples)
    log_probs, targets = map(torch.cat, zip(*words, strict=True))
    tokens = torch.tensor(3 * [model.vocabulary.encode(("a", "dog"))])
    assert sorted(targets.tolist()) == sorted(tokens.flatten().tolist())
    outputs = model(grids, torch.arange(3), tokens)
    expected = outputs.logits.log_softmax(dim=1).gather(1, tokens.flatten()[outputs.indices].unsqueeze(1)).sum()
    torch.testing.assert_close(log_probs.gather(1, targets.unsqueeze(1)).sum(), expected)


@torch.no_grad()
def test_confidence_is_the_mean_of_calibrated_probabilities_and_doubt_is_a_distance():
    model = small_model()
    regions = torch.rand(3, 4, model.encoder.region_dim, generator=torch.Generator().manual_seed(2))
    model.decoding = BeamSearch(beam_size=3, num_captions=2, max_length=5)
    captions = model.generate(regions[..., :-2])
    calibration = made_up(model.encoder.region_dim)
    regions = model.regions(regions[..., :-2])
    unlikeness = calibration(regions)
    calibration.threshold = unlikeness.sort().values[1]
    for image, of_image in enumerate(rate_captions(model.captioner, calibration, regions, captions)):
        for found, before in zip(of_image, captions[image], strict=True):
            tokens = torch.tensor([found.tokens])
            logits = model.captioner(regions[image : image + 1], torch.tensor([0]), tokens).logits
            scaled = calibration.rescale(logits.log_softmax(dim=1))
            expected = scaled.gather(1, tokens.T).squeeze(1)
            torch.testing.assert_close(found.confidence_log_probs, expected, atol=1e-5, rtol=1e-4)
            assert found.confidence == pytest.approx(math.exp(expected.mean()), rel=1e-4)
            assert found.not_sure == bool(unlikeness[image] > calibration.threshold)
            assert (found.tokens, found.log_prob) == (before.tokens, before.log_prob)
            assert before.confidence == pytest.approx(math.exp(before.log_prob / len(before.tokens)))
            assert not before.not_sure


def test_a_calibration_is_kept_by_a_folder_and_lost_by_an_average(tmp_path: Path):
    path = save(tmp_path / "a.ckpt", 1)
    model = load_model(path, "cpu", BeamSearch())
    calibrated = model._replace(confidence=made_up(model.module.encoder.region_dim))
    save_model_folder(model, tmp_path / "folder")
    write_calibrated(tmp_path / "folder", calibrated, tmp_path / "copy")
    found = load_model(str(tmp_path / "copy"), "cpu", BeamSearch())
    assert found.confidence
    for stored, own in ((found.confidence, calibrated.confidence), (found.module, model.module)):
        for name, values in own.state_dict().items():
            # a folder has matrices in half precision
            torch.testing.assert_close(stored.state_dict()[name], values, atol=1e-3, rtol=1e-2)
    write_calibrated(Path(path), calibrated, Path(path))
    assert CONFIDENCE not in average([path, path])


def test_an_altered_calibration_is_reported(tmp_path: Path):
    path = save(tmp_path / "a.ckpt", 1)
    content = torch.load(path, weights_only=True)
    width = load_model(path, "cpu", BeamSearch()).module.encoder.region_dim
    of_another = {"mean": torch.zeros(3), "directions": torch.zeros(3, 1)}
    alterations: list[tuple[dict[str, Any], str]] = [
        ({"curve": torch.zeros(2)}, r"the confidence in .* was altered"),
        ({"curve": torch.full((3,), 1e30)}, r"the confidence in .* was altered"),
        ({"directions": torch.zeros(7, 2)}, r"the confidence in .* was altered"),
        ({"more": torch.zeros(1)}, r"the confidence in .* was altered"),
        (of_another, r"the confidence in .* is that of another encoder"),
        ({"threshold": torch.tensor(torch.nan)}, r"was altered: confidence\.threshold has values that are not finite"),
    ]
    for changes, sentence in alterations:
        torch.save({**content, CONFIDENCE: made_up(width).state_dict() | changes}, path)
        with pytest.raises(UserError, match=sentence):
            load_model(path, "cpu", BeamSearch())


def test_the_bundled_model_is_sure_of_a_skater_and_not_of_a_drawing():
    captioner = load()
    skater = captioner(FIGURES / "skater.jpg")
    assert not skater.not_sure
    assert 0.3 < skater.confidence < 1
    assert (skater.best.best_log_probs < 0).all()
    assert not np.allclose(skater.best.best_log_probs, skater.log_probs)
    stripes = np.kron(np.indices((16, 16)).sum(axis=0) % 2, np.ones((20, 20)))
    drawing = captioner(Image.fromarray((255 * stripes).astype(np.uint8)))
    assert drawing.not_sure


def test_fine_tuning_keeps_what_the_model_was_sure_of_and_adds_what_it_has_seen():
    """No image becomes less like those that were seen."""
    generator = torch.Generator().manual_seed(1)
    known = made_up(24)
    origin = Confidence(known.curve, known.mean, known.directions[:, :5], known.threshold)
    new, others = torch.rand(4, 24, generator=generator), torch.rand(9, 24, generator=generator)
    mean, directions = principal_directions(new, origin.state_dict())
    extended = Confidence(origin.curve, mean, directions, origin.threshold)
    assert torch.equal(mean, origin.mean)
    assert torch.equal(directions[:, :5], origin.directions)
    assert directions.shape == (24, 8)
    before, after = (confidence(others.unsqueeze(1)) for confidence in (origin, extended))
    assert (after <= before + 1e-3).all()
    assert extended(new.unsqueeze(1)).sum() < 0.5 * origin(new.unsqueeze(1)).sum()
