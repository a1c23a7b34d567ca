"""Confidence of captions: fit a calibration on validation images, and apply it to captions.

Sizes are those of `showattendtell.types`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from showattendtell.config.instantiate import Config, find_source
from showattendtell.data.tokenization import tokenized
from showattendtell.data.vocabulary import PAD
from showattendtell.datamodules.datasets import CaptionDataset, ImageSource
from showattendtell.decoding.image_captioner import (
    CURVE_LIMIT,
    Calibration,
    ImageCaptioner,
    calibrate_captions,
    unit_mean,
)
from showattendtell.errors import UserError
from showattendtell.inference.checkpoints import (
    CALIBRATION,
    has_encoder,
    load,
    read_checkpoint,
    save,
    write_model_folder,
)
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunScores, open_dataset
from showattendtell.inference.loading import LoadedModel
from showattendtell.inference.predictions import evenly_spaced, outputs_by_batch, read_grids
from showattendtell.metrics.ngrams import measure_cider
from showattendtell.metrics.tokenizers import pair_up
from showattendtell.settings import Text
from showattendtell.types import CaptionOutput, Example
from showattendtell.visualization.tables import Labels, Terminal, numeric_table

DIRECTIONS = 64
"""Largest number of principal directions of the training images; they take 160 kB with 1280 channels in float16."""

TRAINING_IMAGES, WORDS = 2000, 10_000
"""Largest numbers of training images, and of words of the validation captions, that a calibration is fitted on."""

UNSURE = 0.05
"""Fraction of the validation images that a calibrated model is unsure of."""


@dataclass
class CalibrateConfig:
    """Settings of `calibrate`.

    Attributes:
        checkpoint: a best.ckpt or last.ckpt of training, a folder written by save_pretrained, a bundled model, or one
            on the hub, as owner/name.
        output: the calibrated checkpoint, a new file or, for a folder, folder; by default the checkpoint is changed.
        cache: the folder of the feature cache; by default that of training.
        device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    """

    checkpoint: Text
    output: Text | None
    cache: Text | None
    device: Text


class WordScores(NamedTuple):
    """Scores of the predicted words at the words of the reference captions.

    error       expected calibration error (Naeini et al. 2015), with 15 bins
    confidence  mean probability of the predicted words
    accuracy    fraction of them that are right
    nll         mean -log p of the words of the reference captions
    """

    error: float
    confidence: float
    accuracy: float
    nll: float


def fit_on_data_set(model: LoadedModel, config: Config) -> tuple[Calibration, tuple[WordScores, WordScores]]:
    """Fit a calibration on the data set that a model was trained on: the curve on the validation captions, the
    principal directions on the training images, and the threshold on the validation images. Also return the scores of
    the validation captions before and after it.

    Args:
        config: of the command, with `dataset` and `cache`.

    Raises:
        UserError: the checkpoint does not say how to read its data set, or it cannot be read.
    """
    settings, dataset = open_dataset(model.config, config)
    dataset = tokenized(dataset, model.module.vocabulary.tokenizer)
    source, dataset = find_source(settings, dataset, model.module.encoder, "train")
    train = evenly_spaced(dataset.split("train"), TRAINING_IMAGES)
    train_regions = read_regions(model.module, source(train), train)
    features = torch.cat([unit_mean(regions).cpu() for regions in train_regions])
    source, dataset = find_source(settings, dataset, model.module.encoder, "val")
    val = dataset.split("val")
    num_words = sum(len(caption.words) + 1 for example in val for caption in example.captions)
    sample = evenly_spaced(val, max(1, len(val) * WORDS // num_words))
    words = list(word_log_probs(model.module, source(sample), sample))
    log_probs, targets = zip(*words, strict=True)
    curve = fit_curve(torch.cat(log_probs), torch.cat(targets))
    calibration = Calibration(curve, *principal_directions(features), torch.tensor(torch.inf))
    unlikeness = torch.cat([calibration(regions.cpu()) for regions in read_regions(model.module, source(val), val)])
    calibration.threshold = torch.quantile(unlikeness, 1 - UNSURE)
    return calibration, score_calibration(words, calibration)


def write_calibration(checkpoint: Path, calibration: Calibration, output: Path) -> None:
    """Write a copy of a checkpoint or a model folder with another calibration. Its weights stay the same.

    Raises:
        OSError: it cannot be written.
    """
    tensors = {name: values.cpu() for name, values in calibration.state_dict().items()}
    if not checkpoint.is_dir():
        save({**load(checkpoint), CALIBRATION: tensors}, output)
        return
    metadata, state = read_checkpoint(checkpoint)
    with_encoder = has_encoder(state)
    state |= {f"{CALIBRATION}.{name}": values for name, values in tensors.items()}
    write_model_folder(output, metadata, state, with_encoder)
    card_page = checkpoint / "README.md"
    if card_page.is_file() and output != checkpoint:
        (output / card_page.name).write_bytes(card_page.read_bytes())


def principal_directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) of features (N, D) and their principal directions (D, K), rounded to float16 as they are
    stored."""
    mean = features.mean(dim=0)
    num_directions = min(DIRECTIONS, features.shape[1] // 2, len(features) - 1)
    _, _, rows = torch.linalg.svd(features - mean, full_matrices=False)
    return mean, rows[:num_directions].T.half().float()


def fit_curve(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Return a, b and c of `Calibration`, (3,), that minimize the log loss of the event that the most probable word is
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
    """Yield the regions (I, L, D) of examples, in batches."""
    return map(module.encoder.prepare_regions, read_grids(module, images, examples, "reading images"))


@torch.no_grad()
def word_log_probs(
    module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield in batches log p of all words (N, V) at the words of the reference captions, and these words (N,)."""
    captions = CaptionDataset(examples, module.vocabulary, images)
    numbers = range(len(captions))
    for together, outputs in outputs_by_batch(module, captions, numbers, "reading captions"):
        targets = captions.tokens.pad(together).flatten()[outputs.indices.cpu()]
        yield outputs.logits.log_softmax(dim=1).cpu()[targets != PAD], targets[targets != PAD]


def score_calibration(
    batches: Iterable[tuple[Tensor, Tensor]], calibration: Calibration
) -> tuple[WordScores, WordScores]:
    """Return the scores of batches of log p (N, V) at the words (N,), before and after calibration."""
    from torchmetrics.functional.classification import binary_calibration_error  # takes seconds to import

    parts = []  # before and after: p of the predicted word, whether it is right, and log p, (2, 3, N)
    for log_probs, targets in batches:
        scored = torch.stack([log_probs, calibration.cpu().calibrate(log_probs)])  # (2, N, V)
        words, numbers = log_probs.argmax(dim=1), torch.arange(len(targets))
        is_right = (words == targets).to(scored).expand(2, -1)
        parts.append(torch.stack([scored[:, numbers, words].exp(), is_right, scored[:, numbers, targets]], dim=1))
    scores = []
    for p, is_right, log_p in torch.cat(parts, dim=2).double():
        error = binary_calibration_error(p, is_right.int(), n_bins=15)
        scores.append(WordScores(*(float(value) for value in (error, p.mean(), is_right.mean(), -log_p.mean()))))
    return scores[0], scores[1]


class CalibrationMetric:
    """How well the probabilities of words and the confidence in captions are calibrated."""

    labels: Labels = MappingProxyType({})

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` if the model has no calibration, or if there are several models."""
        if len(run.models) > 1:
            raise UserError("calibration is scored for one model; leave it out of metrics")
        if run.models[0].calibration is None:
            raise UserError(
                f"{run.checkpoints[0]} is not calibrated; run 'showattendtell calibrate "
                f"checkpoint={run.checkpoints[0]}' first, or leave calibration out of metrics"
            )

    def measure(self, run: EvaluationRun, captions: Captions, seed: int) -> RunScores:
        """Print and return the scores, by their names in result files."""
        calibration = run.models[0].calibration
        assert calibration is not None
        before, after = score_calibration(word_log_probs(run.module, run.images[0], run.examples), calibration)
        print_calibration(before, after, "probabilities at the words of the reference captions")
        best = [image_captions[0] for image_captions in captions.values()]
        references = [[caption.words for caption in example.captions] for example in run.examples]
        by_image = measure_cider(pair_up(best, references)).by_image
        empty, outputs = torch.empty(0), list[CaptionOutput[Tensor]]()
        # as generated: a caption of the maximum length has no <eos>
        tokens = (run.vocabulary.encode(words)[: run.module.decoding.max_length] for words in best)
        for regions in read_regions(run.module, run.images[0], run.examples):
            batch = [[CaptionOutput(caption, empty, empty, empty)] for caption in islice(tokens, len(regions))]
            calibrated = calibrate_captions(run.module.captioner, calibration.to(regions.device), regions, batch)
            outputs += [output for [output] in calibrated]
        confidence = [output.confidence for output in outputs]
        unsure = 100 * float(np.mean([output.unsure for output in outputs]))
        confident = np.argsort(-np.array(confidence), kind="stable")[: max(len(confidence) // 2, 1)]
        confident_half = float(by_image[confident].mean())
        Terminal(highlight=False).print(
            f"the more confident half of the captions has CIDEr {confident_half:.1f}, all have {by_image.mean():.1f}; "
            f"{unsure:.1f} % are marked as not sure\n",
            soft_wrap=True,
        )
        return RunScores(
            {
                "ece": 100 * after.error,
                "ece_uncalibrated": 100 * before.error,
                "nll_calibrated": after.nll,
                "nll_uncalibrated": before.nll,
                "unsure": unsure,
                "cider_confident_half": confident_half,
                "confidence": dict(zip(captions, confidence, strict=True)),
            }
        )


def print_calibration(before: WordScores, after: WordScores, title: str) -> None:
    """Print the scores of the predicted words before and after calibration."""
    table = numeric_table("predicted words", ("before", "after"), title=title)
    labels = ("expected calibration error", "mean confidence", "mean accuracy")
    for label, *values in zip(labels, before, after, strict=False):
        table.add_row(label, *(f"{100 * value:.1f} %" for value in values))
    Terminal(highlight=False).print(table)
