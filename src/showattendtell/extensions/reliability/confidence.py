"""Confidence of captions: fit a calibration on validation images, and score it.

Sizes are those of `showattendtell.types`.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from showattendtell.config.instantiate import find_source
from showattendtell.config.schemas import EvaluationDataSettings
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import CaptionDataset, ImageSource, ImageSourceFactory
from showattendtell.decoding.confidence import CURVE_LIMIT, Confidence, unit_mean
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunMetric, RunScores, open_dataset
from showattendtell.inference.predictions import evenly_spaced, outputs_by_batch, read_grids
from showattendtell.loading.checkpoints import CONFIDENCE, load, save
from showattendtell.loading.hub import CARD
from showattendtell.loading.models import LoadedModel, save_model_folder
from showattendtell.results.tables import Labels
from showattendtell.runtime.distributed import rank
from showattendtell.text.vocabulary import PAD, tokenized
from showattendtell.training.module import CaptioningModule
from showattendtell.types import Dataset, Example

DIRECTIONS = 64
"""Largest number of principal directions of the training images; they take 160 kB with 1280 channels in float16."""

TRAINING_IMAGES, WORDS = 2000, 10_000
"""Largest numbers of training images, and of words of the validation captions, that a calibration is fitted on."""

UNSURE = 0.05
"""Fraction of the validation images that a calibrated model is not sure of."""

FEW = 100
"""Fewer validation images do not show above which unlikeness this fraction lies."""


class Calibration(Callback):
    """Calibrates the best checkpoint when a training ends. Weights, and the other entries of the file, stay the same.

    A model that was fine-tuned with `init_from` is sure of images like those that either training has seen.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: CaptioningModule) -> None:  # type: ignore[override]
        data = getattr(trainer, "datamodule", None)
        savers = [saver for saver in trainer.checkpoint_callbacks if isinstance(saver, ModelCheckpoint)]
        files = [Path(saver.best_model_path) for saver in savers]
        if rank() or not isinstance(data, CaptionDataModule):
            return
        weights = {name: values.clone() for name, values in pl_module.state_dict().items()}
        pl_module.eval()
        for file in filter(Path.is_file, files):
            checkpoint = load(file)
            pl_module.load_state_dict(checkpoint["state_dict"])
            confidence = fit_confidence(pl_module, data.source, data.dataset, pl_module.metadata.get(CONFIDENCE))
            save({**checkpoint, CONFIDENCE: confidence.state_dict()}, file)
        pl_module.load_state_dict(weights)
        pl_module.train()


def fit_on_data_set(model: LoadedModel, given: EvaluationDataSettings, cache: str | None) -> Confidence:
    """Fit a calibration on the data set that a model was trained on: the curve on the validation captions, the
    principal directions on the training images, and the threshold on the validation images.

    Args:
        given, cache: see `open_dataset`.

    Raises:
        UserError: the checkpoint does not say how to read its data set, or it cannot be read.
    """
    module = model.module
    settings, dataset = open_dataset(model.settings, given, cache)
    dataset = tokenized(dataset, module.vocabulary.tokenizer)
    for split in ("train", "val"):  # each drops its unreadable images
        source, dataset = find_source(settings, dataset, module.encoder, split)
    return fit_confidence(module, source, dataset)


def fit_confidence(
    module: ImageCaptioner, source: ImageSourceFactory, dataset: Dataset, origin: Mapping[str, Tensor] | None = None
) -> Confidence:
    """Fit a calibration; see `fit_on_data_set`.

    Args:
        source: the images as the model reads them.
        origin: the tensors of the `Confidence` of a model that this one was fine-tuned from. Its principal directions
            are kept, and so is its threshold if there are few validation images.
    """
    train, val = evenly_spaced(dataset.split("train"), TRAINING_IMAGES), dataset.split("val")
    features = torch.cat([unit_mean(regions) for regions in read_regions(module, source(train), train)])
    num_words = sum(len(caption.words) + 1 for example in val for caption in example.captions)
    sample = evenly_spaced(val, max(1, len(val) * WORDS // num_words))
    log_probs, targets = map(torch.cat, zip(*word_log_probs(module, source(sample), sample), strict=True))
    curve = fit_curve(log_probs, targets)
    calibration = Confidence(curve, *principal_directions(features, origin), torch.tensor(torch.inf))
    unlikeness = torch.cat([calibration(regions) for regions in read_regions(module, source(val), val)])
    calibration.threshold = torch.quantile(unlikeness, 1 - UNSURE)
    if origin and len(val) < FEW:
        calibration.threshold = origin["threshold"]
    return calibration


def write_calibrated(checkpoint: Path, model: LoadedModel, output: Path) -> None:
    """Write a copy of a checkpoint or a model folder with the calibration of `model`. Its weights stay the same.

    Raises:
        OSError: it cannot be written.
    """
    if checkpoint.is_dir():
        save_model_folder(model, output)
        card = checkpoint / CARD
        if card.is_file() and output != checkpoint:
            shutil.copy(card, output)
    elif model.confidence:
        save({**load(checkpoint), CONFIDENCE: model.confidence.state_dict()}, output)


def principal_directions(features: Tensor, origin: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) of features (N, D) and their principal directions (D, K), rounded to float16 as they are
    stored; with `origin` its own mean and directions, and those of what the features have outside of its plane."""
    mean = features.mean(dim=0) if origin is None else origin["mean"]
    known = features.new_zeros(features.shape[1], 0) if origin is None else origin["directions"]
    outside = features - mean - (features - mean) @ known @ known.T
    num_directions = max(0, min(DIRECTIONS, features.shape[1] // 2 - known.shape[1], len(features) - 1))
    _, _, rows = torch.linalg.svd(outside, full_matrices=False)
    return mean, torch.cat([known, rows[:num_directions].T.half().float()], dim=1)


def fit_curve(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Return a, b and c of `Confidence`, (3,), that minimize the log loss of the event that the most probable word is
    the right one: a logistic regression.

    The likelihood of all words would not do for a model trained by rewards: it is dominated by words that the model
    never writes.

    Args:
        log_probs: (N, V) of the words.
        targets: (N,) the words of the reference captions.
    """
    from scipy.optimize import minimize  # takes a while to import

    best, words = log_probs.max(dim=1)
    rest = log_probs.scatter(1, words.unsqueeze(1), -torch.inf).logsumexp(dim=1)
    features = torch.stack([best, -rest, torch.ones_like(best)], dim=1).double().numpy()
    is_right = (words == targets).double().numpy()

    def loss(curve: np.ndarray) -> float:
        log_odds = features @ curve
        return float(np.mean(np.logaddexp(0, log_odds) - is_right * log_odds))

    bounds = [(0, CURVE_LIMIT), (0, CURVE_LIMIT), (-CURVE_LIMIT, CURVE_LIMIT)]
    result = minimize(loss, [1.0, 1.0, 0.0], bounds=bounds)
    return torch.tensor(result.x, dtype=torch.float32)


def read_regions(module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]) -> Iterator[Tensor]:
    """Yield the regions (I, L, D) of examples on the CPU, in batches."""
    for grids in read_grids(module, images, examples, "reading images"):
        yield module.encoder.prepare_regions(grids).cpu()


@torch.no_grad()
def word_log_probs(
    module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield in batches log p of all words (N, V) at the words of the reference captions, and these words (N,)."""
    captions = CaptionDataset(examples, module.vocabulary, images)
    for together, outputs in outputs_by_batch(module, captions, range(len(captions)), "reading captions"):
        targets = captions.tokens.pad(together).flatten()[outputs.indices.cpu()]
        yield outputs.logits.log_softmax(dim=1).cpu()[targets != PAD], targets[targets != PAD]


def calibration_errors(batches: Iterable[tuple[Tensor, Tensor]], calibration: Confidence) -> dict[str, float]:
    """Return the expected calibration error (Naeini et al. 2015) of the most probable words in percent, with 15 bins:
    `ece`, and `ece_uncalibrated` without calibration.

    Args:
        batches: log p (N, V) at words, and the words (N,).
    """
    from torchmetrics.functional.classification import binary_calibration_error  # takes seconds to import

    rows = []
    for log_probs, targets in batches:
        best = [values.amax(dim=1).exp() for values in (calibration.rescale(log_probs), log_probs)]
        rows.append(torch.stack([*best, log_probs.argmax(dim=1) == targets]))
    *confidences, is_right = torch.cat(rows, dim=1)
    errors = [100 * float(binary_calibration_error(p, is_right.int(), n_bins=15)) for p in confidences]
    return dict(zip(("ece", "ece_uncalibrated"), errors, strict=True))


class CalibrationMetric(RunMetric):
    """How well the probabilities of words are calibrated, and how many images the model is not sure of."""

    labels: Labels = MappingProxyType(
        {
            "ece": ("expected calibration error, %", ".1f"),
            "ece_uncalibrated": ("the same without calibration", ".1f"),
            "not_sure": ("images marked as not sure, %", ".1f"),
        }
    )

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` if the model has no calibration, or if there are several models."""
        if len(run.models) > 1:
            raise UserError("calibration is scored for one model; leave it out of metrics")
        if run.models[0].confidence is None:
            raise UserError(
                f"{run.checkpoints[0]} is not calibrated; run 'showattendtell calibrate "
                f"checkpoint={run.checkpoints[0]}' first, or leave calibration out of metrics"
            )

    def measure(self, run: EvaluationRun, captions: Captions, figures: Mapping[str, Any]) -> RunScores:
        """Return the scores at the words of the reference captions."""
        images, calibration = run.images[0], run.models[0].confidence
        assert calibration is not None
        errors = calibration_errors(word_log_probs(run.module, images, run.examples), calibration.cpu())
        unlikeness = torch.cat([calibration(regions) for regions in read_regions(run.module, images, run.examples)])
        return RunScores({**errors, "not_sure": 100 * float((unlikeness > calibration.threshold).float().mean())})
