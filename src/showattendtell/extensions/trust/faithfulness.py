"""Faithfulness of attention maps: whether the regions with large weights are those that the words depend on.

Captions are scored again with regions of their images left out. The *effect* of region i on a word y_t is what leaving
it out does to its log-probability, with the words before it given:

    effect_ti = log p(y_t | a, y_<t) - log p(y_t | a without a_i, y_<t)

Leaving out a region is exact. The decoder reads the others as if the encoder had never returned it: attention
distributes its weight over them, and the initial state is computed from their mean. The encoder has mixed neighboring
regions before, so a region also knows of its surroundings.

A map is any weighting of the regions: attention weights, an attribution, or a baseline that ignores the model. Sizes
are those of `showattendtell.types`; R is the number of images that some regions of an image make.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from showattendtell.data.tokenizers import word_class
from showattendtell.datamodules.datasets import ImageSource
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunScores
from showattendtell.inference.predictions import read_grids
from showattendtell.metrics.attention import GroundedWord, box_coverage, center_prior
from showattendtell.metrics.bootstrap import (
    Array,
    Intervals,
    SufficientStatistics,
    as_dicts,
    compare_with_first,
    corpus_scores,
    intervals,
)
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels.cross_entropy import CrossEntropy
from showattendtell.types import Box, CaptionerOutput, Example
from showattendtell.visualization.tables import Labels, Terminal, numeric_table

ATTENTION, RANDOM = "attention", "random"
"""Names of the maps that all others are compared with."""

CENTER, BOX = "center", "box"
GRADIENT, INTEGRATED, EFFECT = "gradient_input", "integrated_gradients", "leave_one_out"

MAP_LABELS = {
    ATTENTION: "attention",
    RANDOM: "random maps",
    CENTER: "center prior",
    GRADIENT: "gradient x input",
    INTEGRATED: "integrated gradients",
    EFFECT: "the effects themselves",
    BOX: "ground-truth boxes",
}
"""Labels of the maps whose faithfulness is measured."""

FIELDS = {
    "rank_correlation": "rank\ncorr.",
    "magnitude_correlation": "|effect|",
    "top_tenth": "top\ntenth",
    "deletion": "deletion",
    "insertion": "insertion",
    "magnitude_top_tenth": "|top\ntenth|",
}
"""Measurements of a map, with their labels; see `rank_agreement` and `CaptionedImage.areas`."""

CURVES = ("deletion", "insertion")

DELETED = (0.2, 0.4, 0.6, 0.8)
"""Fractions of the regions that are left out on the deletion and insertion curves."""

INTEGRATION_STEPS = 8


class WordFaithfulness(NamedTuple):
    """Measurements of each map at a word of an image, and the largest effect of a region on the word, in nats."""

    maps: Mapping[str, Mapping[str, float]]
    largest_effect: float
    image: str = ""


class FaithfulnessScores(NamedTuple):
    """Means over words, as result files have them.

    maps            of each map, over the words at which it was measured
    intervals       95 % intervals of each field of each map, by a bootstrap of the images
    against_random  differences of each map's deletion and insertion to those of random maps, with 95 % intervals of a
                    paired bootstrap
    largest_effect  median over words of the largest effect of any region, in nats
    words           number of words with effects
    curves          number of words with curves
    """

    maps: dict[str, dict[str, float]]
    intervals: dict[str, Intervals]
    against_random: dict[str, dict[str, Any]]
    largest_effect: float
    words: int
    curves: int


class FaithfulnessMetric:
    """Whether attention maps show the regions that words depend on."""

    labels: Labels = MappingProxyType({})

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` for several models, or a model of which no region can be left out in a comparable way."""
        if len(run.models) > 1:
            raise UserError("faithfulness is scored for one model; leave it out of metrics")
        check_intervention(run.models[0].module)

    def measure(self, run: EvaluationRun, captions: Captions, seed: int) -> RunScores:
        """Print and return the scores; rates of attention are in percent."""
        best = {image: image_captions[0] for image, image_captions in captions.items()}
        scores = measure_faithfulness(run.module, run.images[0], run.examples, best, seed)
        print_faithfulness(scores, "faithfulness of the maps at the generated words")
        figures: dict[str, Any] = {}
        for field, value in scores.maps.get(ATTENTION, {}).items():
            figures[f"attention_{field}"] = 100 * value if field.endswith("top_tenth") else value
        return RunScores({**figures, "faithfulness": scores._asdict()})


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
) -> FaithfulnessScores:
    """Measure how faithful the attention maps of captions are.

    The effect of every region is measured at every word. The curves of deletion and insertion, which take the most
    time, are measured at one word per caption: one with ground-truth boxes if there is one, otherwise a content word.

    Args:
        captions: the caption of each image, in words.
        seed: seed of the random maps and of the choice of words.
    """
    measured: list[WordFaithfulness] = []
    generator = np.random.default_rng(seed)
    grids = read_grids(module, images, examples, "leaving out regions")
    for example, grid in zip(examples, chain.from_iterable(grids), strict=True):
        [regions], words = module.encoder.prepare_regions(grid.unsqueeze(0)), captions[example.image]
        if not words or len(regions) == 1:
            continue
        caption = CaptionedImage(module.captioner, regions, module.vocabulary.encode(words))
        alpha, log_p, effects = caption.region_effects()
        center = center_prior(*module.encoder.grid).flatten()
        grounded = box_maps(module, words, example)
        candidates = list(grounded) or [n for n, word in enumerate(words) if word_class(word) == "content"] or [0]
        with_curve = int(generator.choice(candidates))
        for i in range(len(words)):
            maps = {ATTENTION: alpha[i], RANDOM: generator.random(len(regions)), CENTER: center}
            curves: dict[str, dict[str, float]] = {}
            if i == with_curve:
                maps |= {EFFECT: effects[i], **caption.gradient_maps(i)}
                if i in grounded:
                    maps[BOX] = grounded[i]
                curves = caption.areas(i, maps, float(np.exp(log_p[i])), generator)
            scores = {name: rank_agreement(each, effects[i]) | curves.get(name, {}) for name, each in maps.items()}
            measured.append(WordFaithfulness(scores, float(effects[i].max()), example.image))
    return score_faithfulness(measured)


class CaptionedImage:
    """An image and its caption, which is scored again with other images.

    Args:
        regions: (L, D).
        tokens: T words.
    """

    def __init__(self, captioner: Captioner, regions: Tensor, tokens: Sequence[int]):
        self.captioner, self.regions = captioner, regions
        self.tokens = torch.tensor(tokens, device=regions.device)

    def outputs(self, images: Tensor, num_words: int) -> CaptionerOutput:
        """Return the captioner's output for the first words of the caption with each of the images (R, K, D)."""
        rows = torch.arange(len(images), device=images.device)
        return self.captioner(images, rows, self.tokens[:num_words].expand(len(images), -1))

    def cross_entropy(self, images: Tensor, word: int) -> CrossEntropy:
        """Return the cross-entropy (R,) of a word with each of the images (R, K, D)."""
        output = self.outputs(images, word + 1)
        is_last = output.indices % (word + 1) == word
        return output.output_features.select(is_last).cross_entropy(self.tokens[word].repeat(len(images)))

    @torch.no_grad()
    def region_effects(self) -> tuple[Array, Array, Array]:
        """Return the attention weights (T, L), log p of the words (T,), and the effect of each region on each word
        (T, L)."""
        num_regions, num_words = len(self.regions), len(self.tokens)
        is_kept = ~torch.eye(num_regions, dtype=torch.bool, device=self.regions.device)
        rows = torch.arange(num_regions, device=self.regions.device).expand(num_regions, -1)
        others = self.regions[rows[is_kept].view(num_regions, -1)]  # (L, L - 1, D)
        log_p = []
        outputs = [self.outputs(images, num_words) for images in (self.regions.unsqueeze(0), others)]
        for output in outputs:
            words = self.tokens.repeat(len(output.weights))[output.indices]
            log_p.append(_array(output.at_steps(-output.output_features.cross_entropy(words).nll)))
        return _array(outputs[0].weights[0]), log_p[0][0], log_p[0].T - log_p[1].T

    @torch.no_grad()
    def areas(
        self, word: int, maps: Mapping[str, Array], p_all: float, generator: np.random.Generator
    ) -> dict[str, dict[str, float]]:
        """Return the mean p of a word on the curves of each map (L,).

        deletion   while regions are left out, largest weight first; small for a faithful map
        insertion  while regions are added, largest weight first; large for a faithful map

        Equal weights are ordered at random.

        Args:
            p_all: p of the word with all regions.
        """
        num_regions = len(self.regions)
        ties = generator.random(num_regions)
        orders = torch.from_numpy(np.stack([np.lexsort((ties, -weights)) for weights in maps.values()]))
        curves = [np.full((2, len(maps)), p_all)]
        removed = num_deleted(num_regions)
        for n in removed:
            sets = torch.cat([orders[:, n:], orders[:, : num_regions - n]])  # without, and with only, the first
            nll = self.cross_entropy(self.regions[sets.to(self.regions.device)], word).nll
            curves.append(np.exp(_array(-nll)).reshape(2, -1))
        fractions = [n / num_regions for n in (0, *removed)]
        # the means of both curves: their areas by the trapezoidal rule, divided by their width
        means = np.trapezoid(np.stack(curves, axis=1), fractions, axis=1) / fractions[-1]  # (2, maps)
        return {name: dict(zip(CURVES, pair, strict=True)) for name, pair in zip(maps, means.T.tolist(), strict=True)}

    def gradient_maps(self, word: int) -> dict[str, Array]:
        """Return two attributions (L,) of log p of a word to the regions.

        gradient_input        sum_d a_id dlog p / da_id
        integrated_gradients  the same with the mean gradient on the way from regions of zeros to the regions
                              (Sundararajan et al. 2017), by the midpoint rule; its sum is log p less that of an image
                              of zeros
        """
        fractions = [(step + 0.5) / INTEGRATION_STEPS for step in range(INTEGRATION_STEPS)] + [1.0]
        points = self.regions * torch.tensor(fractions, device=self.regions.device).view(-1, 1, 1)  # (S + 1, L, D)
        points.requires_grad_()
        with torch.enable_grad():
            [gradients] = torch.autograd.grad(-self.cross_entropy(points, word).loss.sum(), points)
        attributions = {GRADIENT: gradients[-1], INTEGRATED: gradients[:-1].mean(dim=0)}
        return {name: _array((x * self.regions).sum(dim=1)) for name, x in attributions.items()}


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def num_deleted(regions: int) -> list[int]:
    """Return the numbers of regions that are left out on the curves, ascending, at least one of each kept and left
    out."""
    return sorted({min(max(1, round(fraction * regions)), regions - 1) for fraction in DELETED})


def rank_agreement(weights: Array, effects: Array) -> dict[str, float]:
    """Compare a map (L,) with the effects (L,) of the regions.

    Returns:
        `rank_correlation`, Spearman's rank correlation of the map with the effects, -1 to 1, 0 for a constant map;
        `top_tenth`, whether the region with the largest weight is among the tenth of the regions with the largest
        effects, or of several equal weights the fraction that is; `magnitude_correlation` and `magnitude_top_tenth`,
        the same with |effect|: a region may also speak against the word.
    """
    from scipy.stats import rankdata  # takes a while to import

    agreement = {}
    for kind, sizes in (("", effects), ("magnitude_", np.abs(effects))):
        with np.errstate(invalid="ignore"):  # of a constant map
            correlation = np.nan_to_num(np.corrcoef(rankdata(weights), rankdata(sizes))[0, 1])
        is_top = np.zeros(len(sizes))
        is_top[np.argsort(-sizes, kind="stable")[: max(1, round(len(sizes) / 10))]] = 1
        agreement[f"{kind or 'rank_'}correlation"] = float(correlation)
        agreement[f"{kind}top_tenth"] = float(is_top[weights == weights.max()].mean())
    return agreement


def box_maps(module: ImageCaptioner, words: Sequence[str], example: Example) -> dict[int, Array]:
    """Return for each word that a reference caption uses for an object with ground-truth boxes the fraction of each
    region (L,) that the boxes cover; not if they are outside of the part that the encoder sees."""
    by_noun: dict[str, list[Box]] = {}
    for caption in example.captions:
        for phrase in caption.phrases:
            by_noun.setdefault(caption.words[phrase.noun], []).extend(phrase.boxes)
    named = [i for i, word in enumerate(words) if word in by_noun]
    if not named:
        return {}
    seen, no_weights = module.encoder.preprocessing.frame(example.path).seen, np.zeros(module.encoder.grid)
    maps = {i: box_coverage(GroundedWord(no_weights, seen, tuple(by_noun[words[i]]))).flatten() for i in named}
    return {i: covered for i, covered in maps.items() if covered.any()}


@dataclass(frozen=True, eq=False)
class MeanOverWords(SufficientStatistics):
    """A score that is a mean over words, of which images have different numbers.

    name      name of the score
    by_image  (I, 2) the sum over the words of each image, and their number
    """

    name: str
    by_image: Array

    def scores(self, copies: Array) -> dict[str, Array]:
        """Return the mean of each corpus that has words: a resample may consist of images without any."""
        sums, counts = (copies @ self.by_image).T
        return {self.name: sums[counts > 0] / counts[counts > 0]}


def score_faithfulness(words: Sequence[WordFaithfulness], resamples: int = 1000) -> FaithfulnessScores:
    """Return the means over words, nan without words.

    Args:
        resamples: number of bootstrap samples.
    """
    images = {image: i for i, image in enumerate(dict.fromkeys(word.image for word in words))}
    # of each field of each map, what `MeanOverWords` needs
    sums: defaultdict[str, dict[str, Array]] = defaultdict(lambda: defaultdict(lambda: np.zeros((len(images), 2))))
    for word in words:
        for name, values in word.maps.items():
            for field, value in values.items():
                sums[name][field][images[word.image]] += value, 1

    maps, limits, against_random = {}, {}, {}
    for name, fields in sums.items():
        measured = {field: MeanOverWords(field, by_image) for field, by_image in fields.items()}
        maps[name] = corpus_scores(measured.values())
        limits[name] = intervals(measured, len(images), 0, resamples)
        if name != RANDOM and "deletion" in fields:
            # the curves of an image are all of one word, so both maps are compared at the same words
            is_measured = fields["deletion"][:, 1:] > 0
            random = {field: MeanOverWords(field, sums[RANDOM][field] * is_measured) for field in CURVES}
            pair = [random, {field: measured[field] for field in CURVES}]
            [comparison] = compare_with_first(pair, len(images), resamples, 0)
            against_random[name] = as_dicts(comparison)
    effect = float(np.median([word.largest_effect for word in words])) if words else float("nan")
    curves = sum("deletion" in word.maps.get(RANDOM, {}) for word in words)
    return FaithfulnessScores(maps, limits, against_random, effect, len(words), curves)


def print_faithfulness(scores: FaithfulnessScores, title: str) -> None:
    """Print the faithfulness of each map, and for the attention maps the differences to random maps."""
    table = numeric_table("map", FIELDS.values(), title=title)
    for name, label in MAP_LABELS.items():
        if name in scores.maps:
            table.add_row(label, *(f"{scores.maps[name][field]:.3f}" for field in FIELDS))
    console = Terminal(highlight=False, soft_wrap=True)
    console.print(table)
    for field, differences in scores.against_random.get(ATTENTION, {}).items():
        difference, low, high, _ = differences.values()
        console.print(f"{field} of attention minus that of random maps: {difference:+.3f} [{low:+.3f}, {high:+.3f}]")
    console.print(
        f"{scores.words:,} words, {scores.curves:,} of them with curves; the largest effect of any region is "
        f"{scores.largest_effect:.3f} nats in the median\n"
    )
