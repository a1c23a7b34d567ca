"""Faithfulness of attention maps: whether the regions with large weights are those that the words depend on.

Captions are scored again with regions of their images left out. The *effect* of region i on a word y_t is what leaving
it out does to its log-probability, with the words before it given:

    effect_ti = log p(y_t | a, y_<t) - log p(y_t | a without a_i, y_<t)

Leaving out a region is exact. The decoder reads the others as if the encoder had never returned it: attention
distributes its weight over them, and the initial state is computed from their mean. The encoder has mixed neighboring
regions before, so a region also knows of its surroundings.

The attention maps are compared with two that ignore the model: random weights, and a Gaussian around the center. Sizes
are those of `showattendtell.types`; R is the number of images that some regions of an image make, and M the number of
maps.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from showattendtell.datamodules.datasets import ImageSource
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunMetric, RunScores
from showattendtell.inference.predictions import read_grids
from showattendtell.metrics.attention import CONTENT, center_prior, word_class
from showattendtell.metrics.bootstrap import RESAMPLES, Array, Comparison, ImageMeans, compare_with_first
from showattendtell.models.captioner import Captioner
from showattendtell.results.tables import Terminal, numeric_table
from showattendtell.types import Example

MAPS = ("attention", "random", "center")

FIELDS = {
    "rank_correlation": "rank\ncorr.",
    "magnitude_correlation": "|effect|",
    "deletion": "deletion",
    "insertion": "insertion",
}
"""Measurements of a map, with their labels; see `rank_agreement` and `curve_areas`."""

CURVES = ("deletion", "insertion")

DELETED = (0.2, 0.4, 0.6, 0.8)
"""Fractions of the regions that are left out on the deletion and insertion curves."""


class FaithfulnessMetric(RunMetric):
    """Whether attention maps show the regions that words depend on."""

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` for several models, or a model of which no region can be left out in a comparable way."""
        if len(run.models) > 1:
            raise UserError("faithfulness is scored for one model; leave it out of metrics")
        check_intervention(run.models[0].module)

    def measure(self, run: EvaluationRun, captions: Captions, figures: Mapping[str, Any]) -> RunScores:
        """Print and return the scores."""
        best = {image: image_captions[0] for image, image_captions in captions.items() if image_captions[0]}
        if not best:
            return RunScores({}, {"faithfulness": "no caption has a word"})
        examples = [example for example in run.examples if example.image in best]
        scores = measure_faithfulness(run.module, run.images[0], examples, best, run.seed)
        print_faithfulness(scores)
        attention = {f"attention_{field}": value for field, value in scores["maps"]["attention"].items()}
        return RunScores({**attention, "faithfulness": scores})


def check_intervention(module: ImageCaptioner) -> None:
    """Raise `UserError` for a model of which no region can be left out in a comparable way."""
    if module.captioner.attention.inference_mode == "sample":
        raise UserError(
            "this checkpoint samples where it attends, and the effect of a region would be lost in the noise; set "
            "attention.inference_mode=argmax (the likeliest region) or attention.inference_mode=expectation"
        )
    rows, columns = module.encoder.grid
    if rows * columns < 2:
        raise UserError("this model has a single region per image, and nothing to leave out; use another encoder")


def measure_faithfulness(
    module: ImageCaptioner,
    images: ImageSource,
    examples: Sequence[Example],
    captions: Mapping[str, Sequence[str]],
    seed: int = 0,
) -> dict[str, Any]:
    """Measure how faithful the attention maps of captions are.

    The effect of every region is measured at every word. The curves of deletion and insertion, which take more time,
    are measured at one content word per caption.

    Args:
        captions: the caption of each image, in words, at least one.
        seed: seed of the random maps and of the choice of words.

    Returns:
        The content for result files: the means of the fields of each of the `maps`; `against_random`, the differences
        of the curves of attention to those of random maps, with 95 % intervals of a paired bootstrap of the images; and
        the number of `words`.
    """
    agreements, areas = list[Array](), list[Array]()
    generator, center = np.random.default_rng(seed), center_prior(*module.encoder.grid).flatten()
    grids = read_grids(module, images, examples, "leaving out regions")
    for example, grid in zip(examples, chain.from_iterable(grids), strict=True):
        words = captions[example.image]
        [regions] = module.encoder.prepare_regions(grid.unsqueeze(0))
        tokens = torch.tensor(module.vocabulary.encode(words), device=regions.device)
        alpha, effects = region_effects(module.captioner, regions, tokens)
        with_curve = generator.choice([n for n, word in enumerate(words) if word_class(word) == CONTENT] or [0])
        for i in range(len(words)):
            maps = np.stack([alpha[i], generator.random(len(regions)), center])
            agreements.append(rank_agreement(maps, effects[i]))
            if i == with_curve:
                areas.append(curve_areas(module.captioner, regions, tokens[: i + 1], maps, generator))
    means = np.hstack([np.mean(agreements, axis=0), np.mean(areas, axis=0)])  # (M, fields)
    return {
        "maps": {name: dict(zip(FIELDS, row, strict=True)) for name, row in zip(MAPS, means.tolist(), strict=True)},
        "against_random": compare_with_random(np.stack(areas)),
        "words": len(agreements),
    }


def compare_with_random(areas: Array) -> Comparison:
    """Return the differences of attention's curves to those of random maps, given the areas (I, M, 2)."""
    attention, random, _ = areas.transpose(1, 2, 0)
    systems = [
        {name: ImageMeans(name, area) for name, area in zip(CURVES, of, strict=True)} for of in (random, attention)
    ]
    [comparison] = compare_with_first(systems, len(areas), RESAMPLES, 0)
    return comparison


@torch.no_grad()
def score_words(captioner: Captioner, images: Tensor, tokens: Tensor) -> tuple[Array, Array]:
    """Return alpha (R, T, K) and log p (R, T) of the words (T,) of a caption with each of the images (R, K, D)."""
    rows = torch.arange(len(images), device=images.device)
    output = captioner(images, rows, tokens.expand(len(images), -1))
    targets = tokens.repeat(len(images))[output.indices]
    log_p = output.at_steps(-output.output_features.cross_entropy(targets).nll)
    return output.weights.double().cpu().numpy(), log_p.double().cpu().numpy()


def region_effects(captioner: Captioner, regions: Tensor, tokens: Tensor) -> tuple[Array, Array]:
    """Return the attention weights (T, L), and the effect (T, L) of each region (L, D) on each word (T,)."""
    num_regions = len(regions)
    is_kept = ~torch.eye(num_regions, dtype=torch.bool, device=regions.device)
    others = regions.expand(num_regions, -1, -1)[is_kept].view(num_regions, num_regions - 1, -1)
    [alpha], log_p = score_words(captioner, regions.unsqueeze(0), tokens)
    _, log_p_without = score_words(captioner, others, tokens)
    return alpha, (log_p - log_p_without).T


def curve_areas(
    captioner: Captioner,
    regions: Tensor,
    tokens: Tensor,
    maps: Array,
    generator: np.random.Generator,
) -> Array:
    """Return the mean p (M, 2) of the last word of `tokens` (T,) on both curves of the maps (M, L).

    deletion   while regions (L, D) are left out, largest weight first; small for a faithful map
    insertion  while regions are added, largest weight first; large for a faithful map

    Equal weights are ordered at random.
    """
    num_regions = len(regions)
    ties = generator.random(num_regions)
    orders = np.stack([np.lexsort((ties, -weights)) for weights in maps])
    removed, curves = [0, *num_deleted(num_regions)], []
    for n in removed:
        sets = np.concatenate([orders[:, n:], orders[:, : num_regions - n]])  # without, and with only, the first
        _, log_p = score_words(captioner, regions[torch.from_numpy(sets)], tokens)
        curves.append(np.exp(log_p[:, -1]))
    # the means of the curves: their areas by the trapezoidal rule, divided by their width
    means: Array = np.trapezoid(curves, removed, axis=0) / removed[-1]
    return means.reshape(2, -1).T


def num_deleted(regions: int) -> list[int]:
    """Return the numbers of regions that are left out on the curves, ascending, at least one of each kept and left
    out."""
    return sorted({min(max(1, round(fraction * regions)), regions - 1) for fraction in DELETED})


def rank_agreement(maps: Array, effects: Array) -> Array:
    """Return Spearman's rank correlations (M, 2) of maps (M, L) with the effects (L,) of the regions, -1 to 1, and with
    |effect|: a region may also speak against the word. They are 0 for a constant map."""
    from scipy.stats import rankdata  # takes a while to import

    ranks = rankdata([*maps, effects, np.abs(effects)], axis=1)
    with np.errstate(invalid="ignore"):  # of a constant map
        correlations = np.corrcoef(ranks)[: len(maps), len(maps) :]
    return np.nan_to_num(correlations)


def print_faithfulness(scores: Mapping[str, Any]) -> None:
    """Print the faithfulness of each map, and the differences of attention to random maps."""
    table = numeric_table("map", FIELDS.values(), title="faithfulness of the maps at the generated words")
    for name, fields in scores["maps"].items():
        table.add_row(name, *(f"{fields[field]:.3f}" for field in FIELDS))
    console = Terminal(soft_wrap=True)
    console.print(table)
    for field, found in scores["against_random"].items():
        limits = f"[{found['low']:+.3f}, {found['high']:+.3f}]"
        console.print(f"{field} of attention minus that of random maps: {found['difference']:+.3f} {limits}")
    console.print(f"{scores['words']:,} words\n")
