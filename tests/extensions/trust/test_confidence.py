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
from showattendtell.data.vocabulary import EOS
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import (
    Calibration,
    ImageCaptionerEnsemble,
    calibrate_captions,
    unit_mean,
)
from showattendtell.errors import UserError
from showattendtell.extensions.trust.confidence import (
    CalibrationMetric,
    fit_curve,
    principal_directions,
    score_calibration,
    word_log_probs,
    write_calibration,
)
from showattendtell.inference.checkpoints import CALIBRATION
from showattendtell.inference.evaluator import EvaluationRun
from showattendtell.inference.loading import LoadedModel, average, load_model, save_model_folder
from showattendtell.inference.pipeline import CaptioningPipeline
from showattendtell.types import Caption, Dataset, Example


def words_of_a_sure_model(number: int = 6000) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of a model that is 1.6 times as sure as it should be, and the words."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(number, 30, generator=generator)
    targets = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)
    return (1.6 * logits).log_softmax(dim=1), targets


def made_up(width: int, curve: Sequence[float] = (0.8, 0.4, -0.5), threshold: float = 0.3) -> Calibration:
    generator = torch.Generator().manual_seed(0)
    mean, directions = principal_directions(unit_mean(torch.rand(40, 3, width, generator=generator)))
    return Calibration(torch.tensor(curve), mean, directions, torch.tensor(threshold))


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


def test_a_sure_model_is_calibrated():
    log_p, targets = words_of_a_sure_model()
    own = made_up(6, fit_curve(log_p, targets).tolist())
    before, after = score_calibration([(log_p[:2000], targets[:2000]), (log_p[2000:], targets[2000:])], own)
    assert before.error > 0.1
    assert after.error < 0.03
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
            scaled = calibration.calibrate(logits.log_softmax(dim=1))
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


@pytest.mark.parametrize("settings", [{}, {"min_length": 2, "max_length": 2}], ids=["ended", "cut"])
def test_evaluate_stores_the_confidence_that_captions_have(settings: dict[str, Any]):
    model = small_model(seed=2)
    model.decoding = BeamSearch(beam_size=2, **settings)
    calibration, width = made_up(model.encoder.region_dim), model.encoder.dim
    grids = torch.rand(3, 4, width, generator=torch.Generator().manual_seed(2))
    captions = ImageCaptionerEnsemble([model], calibration).generate([grids])
    assert [EOS in caption.tokens for [caption] in captions] == 3 * [not settings]
    examples = tuple(Example(str(i), "", (Caption(("a", "dog")),)) for i in range(3))

    def source(positions: Sequence[int], draw: Any = None) -> torch.Tensor:
        return grids[list(positions)]

    loaded = LoadedModel(model, {}, {}, calibration)  # type: ignore[arg-type]
    dataset = Dataset("own", {"test": examples})
    run = EvaluationRun(["a.ckpt"], [""], [loaded], [source], dataset, "test", source)  # type: ignore[arg-type,list-item]
    _, targets = zip(*word_log_probs(model, source, examples), strict=True)
    assert sorted(torch.cat(targets).tolist()) == sorted(3 * model.vocabulary.encode(("a", "dog")))
    words = {str(i): [model.vocabulary.decode(caption.tokens)] for i, [caption] in enumerate(captions)}
    stored = CalibrationMetric().measure(run, words, seed=1).figures["confidence"]
    assert list(stored.values()) == pytest.approx([caption.confidence for [caption] in captions], rel=1e-4)


def alter(path: str, **changes: Any) -> str:
    content = torch.load(path, weights_only=True)
    content[CALIBRATION] |= changes
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"curve": torch.zeros(2)}, r"the calibration in .* was altered"),
        ({"curve": torch.full((3,), 1e30)}, r"the calibration in .* was altered"),
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
    before, after = score_calibration([(log_p, torch.tensor([0, 1, 0]))], made_up(6, [1, 1, -1]))
    assert before.error == pytest.approx((2 * (0.9 - 0.5) + (1 - 0.6)) / 3)
    assert (before.confidence, before.accuracy) == pytest.approx((0.8, 2 / 3))
    # odds of 9 become 9 / e; the word of p 0.6 cannot fall below 0.5
    assert (after.confidence, after.accuracy) == pytest.approx(((2 / (1 + math.e / 9) + 0.5) / 3, 2 / 3))
    assert before.nll == pytest.approx(-(math.log(0.9) + math.log(0.1) + math.log(0.6)) / 3)
