"""Calibrations: fitted, stored, and what they say of captions."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_checkpoints import save
from small_models import small_model

from showattendtell import load
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import Calibration, calibrate_captions, scale, unit_mean
from showattendtell.errors import UserError
from showattendtell.extensions.trust.confidence import (
    fit_scaling,
    principal_directions,
    score_calibration,
    write_calibration,
)
from showattendtell.inference.checkpoints import CALIBRATION
from showattendtell.inference.loading import average, load_model, save_model_folder
from showattendtell.inference.pipeline import CaptioningPipeline


def words_of_a_sure_model(number: int = 6000) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of a model that is 1.6 times as sure as it should be, and the words."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(number, 30, generator=generator)
    targets = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)
    return (1.6 * logits).log_softmax(dim=1), targets


def made_up(width: int, scaling: Sequence[float] = (0.4, -0.1, 0.2), threshold: float = 0.3) -> Calibration:
    generator = torch.Generator().manual_seed(0)
    mean, directions = principal_directions(unit_mean(torch.rand(40, 3, width, generator=generator)))
    return Calibration(torch.tensor(scaling), mean, directions, torch.tensor(threshold))


def test_a_planted_temperature_is_found():
    log_p, targets = words_of_a_sure_model()
    scaling = fit_scaling(log_p, targets)
    found, right = scale(log_p, scaling), (log_p / 1.6).log_softmax(dim=1)
    assert (found.exp() - right.exp()).abs().max() < 0.1
    own = made_up(6, scaling.tolist())
    before, after = score_calibration([(log_p[:2000], targets[:2000]), (log_p[2000:], targets[2000:])], own)
    assert before.error > 0.1
    assert after.error < 0.03
    assert after.nll == pytest.approx(-right.gather(1, targets.unsqueeze(1)).mean().item(), abs=0.02)
    assert after.nll < before.nll


def test_principal_directions_are_those_of_the_covariance():
    features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 7)
    mean, directions = principal_directions(features)
    values, vectors = np.linalg.eigh(np.cov(features.numpy().T))
    assert directions.shape == (6, 3)
    overlap = np.abs(vectors[:, np.argsort(-values)[:3]].T @ directions.numpy())
    np.testing.assert_allclose(overlap, np.eye(3), atol=2e-3)
    torch.testing.assert_close(mean, features.mean(dim=0))


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
    for image, of_image in enumerate(calibrate_captions(model.captioner, calibration, regions, captions)):
        for found, before in zip(of_image, captions[image], strict=True):
            tokens = torch.tensor([found.tokens])
            logits = model.captioner(regions[image : image + 1], torch.tensor([0]), tokens).logits
            scaled = scale(logits.log_softmax(dim=1), calibration.scaling)
            expected = scaled.gather(1, tokens.T).squeeze(1)
            torch.testing.assert_close(found.calibrated_log_probs, expected, atol=1e-5, rtol=1e-4)
            assert found.confidence == pytest.approx(math.exp(expected.mean()), rel=1e-4)
            assert found.unsure == bool(unlikeness[image] > calibration.threshold)
            assert (found.tokens, found.log_prob) == (before.tokens, before.log_prob)
            assert before.confidence == pytest.approx(math.exp(before.log_prob / len(before.tokens)))
            assert not before.unsure


def test_a_calibration_is_kept_by_files_and_folders_and_lost_by_an_average(tmp_path: Path):
    path = save(tmp_path / "a.ckpt", 1)
    model = load_model(path, "cpu", BeamSearch())
    assert model.calibration is None
    own = made_up(model.module.encoder.region_dim)
    write_calibration(Path(path), own, Path(path))
    calibrated = load_model(path, "cpu", BeamSearch())
    save_model_folder(calibrated, tmp_path / "folder")
    write_calibration(tmp_path / "folder", own, tmp_path / "copy")
    for place in (path, tmp_path / "folder", tmp_path / "copy"):
        found = load_model(str(place), "cpu", BeamSearch())
        assert found.calibration
        for name, values in own.state_dict().items():
            torch.testing.assert_close(found.calibration.state_dict()[name], values, atol=1e-3, rtol=1e-3)
        for name, values in model.module.state_dict().items():
            close = {"atol": 1e-3, "rtol": 1e-2}  # a folder has matrices in half precision
            torch.testing.assert_close(found.module.state_dict()[name], values, **close)
    assert CALIBRATION not in average([path, path])


def alter(path: str, **changes: Any) -> str:
    content = torch.load(path, weights_only=True)
    content[CALIBRATION] |= changes
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"scaling": torch.zeros(2)}, r"the calibration in .* was altered; calibrate it again"),
        ({"directions": torch.zeros(7, 2)}, r"the calibration in .* was altered"),
        ({"more": torch.zeros(1)}, r"the calibration in .* was altered"),
        (
            {"mean": torch.zeros(3), "directions": torch.zeros(3, 1)},
            r"the calibration in .* is that of another encoder",
        ),
        ({"threshold": torch.tensor(torch.nan)}, r"was altered: calibration\.threshold has values that are not finite"),
    ],
)
def test_an_altered_calibration_is_reported(changes: dict[str, Any], sentence: str, tmp_path: Path):
    path = save(tmp_path / "a.ckpt", 1)
    width = load_model(path, "cpu", BeamSearch()).module.encoder.region_dim
    write_calibration(Path(path), made_up(width), Path(path))
    with pytest.raises(UserError, match=sentence):
        load_model(alter(path, **changes), "cpu", BeamSearch())


def test_the_bundled_model_is_sure_of_a_skater_and_not_of_a_drawing():
    captioner = load()
    skater = captioner(Path(__file__).parents[3] / "docs/figures/skater.jpg")
    assert not skater.unsure
    assert 0.3 < skater.confidence < 1
    assert (skater.best.best_log_probs < 0).all()
    assert not np.allclose(skater.best.best_log_probs, skater.log_probs)
    stripes = np.kron(np.indices((16, 16)).sum(axis=0) % 2, np.ones((20, 20)))
    drawing = captioner(Image.fromarray((255 * stripes).astype(np.uint8)))
    assert drawing.unsure


def test_a_calibration_changes_no_caption():
    model = load_model("flickr8k_soft", "cpu", BeamSearch(beam_size=3))
    with_doubt, without = load(), CaptioningPipeline("plain", [model._replace(calibration=None)])
    photograph = Path(__file__).parents[3] / "docs/figures/bird.jpg"
    own, plain = with_doubt(photograph), without(photograph)
    assert (own.caption, own.tokens) == (plain.caption, plain.tokens)
    np.testing.assert_allclose(own.log_probs, plain.log_probs, atol=1e-5)
    np.testing.assert_allclose(own.attention, plain.attention, atol=1e-5)
    assert plain.confidence == pytest.approx(math.exp(plain.log_probs.sum() / len(plain.tokens)))
    assert not plain.unsure


def test_scores_of_words_worked_by_hand():
    """Two words of p 0.9, one of them right, and one of 0.6 that is right."""
    log_p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]).log()
    before, _ = score_calibration([(log_p, torch.tensor([0, 1, 0]))], made_up(6))
    assert before.error == pytest.approx((2 * (0.9 - 0.5) + (1 - 0.6)) / 3)
    assert (before.confidence, before.accuracy) == pytest.approx((0.8, 2 / 3))
    assert before.nll == pytest.approx(-(math.log(0.9) + math.log(0.1) + math.log(0.6)) / 3)
