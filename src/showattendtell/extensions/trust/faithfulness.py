"""Measurement of the faithfulness of attention: captions are scored again with regions of their images left out.

Leaving out a region is exact. The decoder reads the others as if the encoder had never returned it: attention
distributes its weight over them, and the initial state is computed from their mean. The encoder has mixed neighboring
regions before, so a region also knows of its surroundings. Sizes are those of `showattendtell.types`; R is the number
of sets of regions that are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from rich.table import Column, Table
from torch import Tensor

from showattendtell.data.tokenizers import word_class
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.trust.map_faithfulness import (
    ATTENTION,
    RANDOM,
    Array,
    FaithfulnessScores,
    MapFaithfulness,
    WordFaithfulness,
    num_deleted,
    rank_agreement,
    score_faithfulness,
)
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunScores
from showattendtell.inference.predictions import Predictor, read_grids
from showattendtell.metrics.attention import GroundedWord, box_coverage, center_prior, center_prior_of
from showattendtell.metrics.bootstrap import Difference
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels.cross_entropy import CrossEntropy
from showattendtell.types import Box, CaptionerOutput, Example, RegionBoxes
from showattendtell.visualization.tables import Labels, Terminal

CENTER, BOX = "center", "box"
GRADIENT, INTEGRATED, EFFECT = "gradient_input", "integrated_gradients", "leave_one_out"

FAITHFULNESS = {
    ATTENTION: "attention",
    RANDOM: "random maps",
    CENTER: "center prior",
    GRADIENT: "gradient x input",
    INTEGRATED: "integrated gradients",
    EFFECT: "the effects themselves",
    BOX: "ground-truth boxes",
}
"""Labels of the maps whose faithfulness is measured."""

INTEGRATION_STEPS = 8


class FaithfulnessMetric:
    """Whether attention maps show the regions that words depend on."""

    labels: Labels = MappingProxyType({})

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` for several models, or a model of which no region can be left out in a comparable way."""
        if len(run.models) > 1:
            raise UserError(
                "faithfulness is scored for one model; give a single checkpoint, or leave it out of metrics"
            )
        if run.vocabulary.languages:
            raise UserError("faithfulness is scored for models of one language; leave it out of metrics")
        check_intervention(run.models[0].module)

    def measure(self, run: EvaluationRun, captions: Captions, seed: int) -> RunScores:
        """Print and return the scores."""
        best = {image: image_captions[0] for image, image_captions in captions.items()}
        scores = measure_faithfulness(run.predictors[0], run.examples, best, seed)
        print_faithfulness(scores, "faithfulness of the maps at the generated words")
        return RunScores(faithfulness_figures(scores))


def measure_faithfulness(
    predictor: Predictor, examples: Sequence[Example], captions: Mapping[str, Sequence[str]], seed: int = 0
) -> FaithfulnessScores:
    """Measure how faithful the attention maps of captions are.

    The effect of every region is measured at every word. The curves of deletion and insertion, which take the most
    time, are measured at one word per caption: one with ground-truth boxes if there is one, otherwise a content word.

    Args:
        captions: the caption of each image, in words.
        seed: seed of the random maps and of the choice of words.
    """
    measured: list[WordFaithfulness] = []
    generator, encoder = np.random.default_rng(seed), predictor.module.encoder
    grids = read_grids(predictor, examples, "leaving out regions")
    for example, grid in zip(examples, chain.from_iterable(grids), strict=True):
        [regions], words = encoder.prepare_regions(grid.unsqueeze(0)), captions[example.image]
        if words and len(regions) > 1:
            boxes = encoder.boxes_of(grid)
            measured += faithfulness_of(predictor.module, regions, words, example, generator, boxes)
    return score_faithfulness(measured)


def check_intervention(module: ImageCaptioner) -> None:
    """Raise `UserError` for a model of which no region can be left out in a comparable way."""
    attention = module.captioner.attention
    if attention.inference_mode == "sample":
        raise UserError(
            "this checkpoint samples where it attends, and the effect of a region would be lost in the noise; set "
            "attention.inference_mode=argmax (the likeliest region) or attention.inference_mode=expectation"
        )
    rows, columns = module.encoder.grid
    if rows * columns < 2:
        raise UserError("this model has a single region per image, and nothing to leave out; use another encoder")


def faithfulness_of(
    module: ImageCaptioner,
    regions: Tensor,
    words: Sequence[str],
    example: Example,
    generator: np.random.Generator,
    boxes: RegionBoxes | None = None,
) -> Iterator[WordFaithfulness]:
    """Yield the faithfulness at each word of a caption of an image with these regions (L, D), without padding.

    Args:
        boxes: of the regions; by default they are the encoder's grid.
    """
    caption = CaptionedImage(module.captioner, regions, module.vocabulary.encode(words))
    alpha = caption.attention()
    log_p, effects = caption.region_effects()
    center = center_prior(*module.encoder.grid).flatten() if boxes is None else center_prior_of(boxes)
    grounded = box_maps(module, words, example, boxes)
    candidates = list(grounded) or [n for n, word in enumerate(words) if word_class(word) == "content"] or [0]
    with_curve = int(generator.choice(candidates))
    for i in range(len(words)):
        maps = {ATTENTION: alpha[i], RANDOM: generator.random(len(regions)), CENTER: center}
        curves: dict[str, tuple[float, float]] = {}
        if i == with_curve:
            maps |= {EFFECT: effects[i], **caption.gradient_maps(i)}
            if i in grounded:
                maps[BOX] = grounded[i]
            curves = caption.areas(i, maps, float(np.exp(log_p[i])), generator)
        agreement = {}
        for name, weights in maps.items():
            deletion, insertion = curves.get(name, (None, None))
            agreement[name] = rank_agreement(weights, effects[i])._replace(deletion=deletion, insertion=insertion)
        yield WordFaithfulness(agreement, float(effects[i].max()), example.image)


class CaptionedImage:
    """An image and its caption, which is scored again with some of its regions.

    Args:
        regions: (L, D).
        tokens: T words.
    """

    def __init__(self, captioner: Captioner, regions: Tensor, tokens: Sequence[int]):
        self.captioner, self.regions = captioner, regions
        self.tokens = torch.tensor(tokens, device=regions.device)
        self.indices = torch.arange(len(regions), device=regions.device)

    @torch.no_grad()
    def attention(self) -> Array:
        """Return the attention weights (T, L)."""
        outputs = self.captioner(self.regions.unsqueeze(0), self.indices[:1], self.tokens.unsqueeze(0))
        return _array(outputs.weights[0])

    @torch.no_grad()
    def log_probs_with(self, parts: Tensor, word: int | None = None) -> Array:
        """Return log p of the words (R, T) if only some regions are kept; of one word (R, 1) if only that is needed.

        Args:
            parts: (R, K) indices of the regions in each set.
            word: index of the only word whose log p is needed.
        """
        prefix = self.tokens if word is None else self.tokens[: word + 1]
        captions = prefix.expand(len(parts), -1)
        initial = self.captioner.init_state(self.regions[parts])
        rows = torch.arange(len(parts), device=parts.device)
        output = self.captioner(initial[0].regions, rows, captions, initial=initial)
        if word is not None:
            return _array(-self._loss(output, captions, word).nll.unsqueeze(1))
        log_p = -output.output_features.cross_entropy(captions.flatten()[output.indices]).nll
        return _array(output.at_steps(log_p))

    def _loss(self, output: CaptionerOutput, captions: Tensor, word: int) -> CrossEntropy:
        """Return the cross-entropy of a word, the last one of captions (R, word + 1)."""
        last = output.indices % captions.shape[1] == word
        return output.output_features.select(last).cross_entropy(captions.flatten()[output.indices[last]])

    def region_effects(self) -> tuple[Array, Array]:
        """Return log p of the words (T,), and the effect of each region on each word (T, L)."""
        num_regions = len(self.regions)
        is_kept = ~torch.eye(num_regions, dtype=torch.bool, device=self.regions.device)
        others = self.indices.expand(num_regions, -1)[is_kept].view(num_regions, -1)
        [log_p] = self.log_probs_with(self.indices.unsqueeze(0))
        return log_p, log_p[:, np.newaxis] - self.log_probs_with(others).T

    def areas(
        self, word: int, maps: Mapping[str, Array], p_all: float, generator: np.random.Generator
    ) -> dict[str, tuple[float, float]]:
        """Return the areas of the deletion and the insertion curve of a word for each map (L,).

        Equal weights are ordered at random.

        Args:
            p_all: p of the word with all regions.
        """
        num_regions = len(self.regions)
        ties = generator.random(num_regions)
        orders = torch.from_numpy(np.stack([np.lexsort((ties, -weights)) for weights in maps.values()]))
        everything = np.full(len(maps), p_all)
        deletion, insertion = [everything], [everything]
        removed = num_deleted(num_regions)
        for n in removed:
            sets = torch.cat([orders[:, n:], orders[:, : num_regions - n]])  # without, and with only, the first
            without, inserted = np.exp(self.log_probs_with(sets.to(self.regions.device), word)).reshape(2, -1)
            deletion.append(without)
            insertion.append(inserted)
        fractions = [n / num_regions for n in (0, *removed)]
        # the means of both curves: their areas by the trapezoidal rule, divided by their width
        means = np.trapezoid([deletion, insertion], fractions, axis=1) / fractions[-1]  # (2, maps)
        return dict(zip(maps, map(tuple, means.T.tolist()), strict=True))

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
        captions = self.tokens[: word + 1].expand(len(fractions), -1)
        with torch.enable_grad():
            output = self.captioner(points, torch.arange(len(fractions), device=points.device), captions)
            [gradients] = torch.autograd.grad(-self._loss(output, captions, word).loss.sum(), points)
        attributions = {GRADIENT: gradients[-1], INTEGRATED: gradients[:-1].mean(dim=0)}
        return {name: _array((x * self.regions).sum(dim=1)) for name, x in attributions.items()}


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def box_maps(
    module: ImageCaptioner, words: Sequence[str], example: Example, boxes: RegionBoxes | None = None
) -> dict[int, Array]:
    """Return for each word that a reference caption uses for an object with ground-truth boxes the fraction of each
    region (L,) that the boxes cover; not if they are outside of the part that the encoder sees."""
    by_noun: dict[str, list[Box]] = {}
    for caption in example.captions:
        for phrase in caption.phrases:
            by_noun.setdefault(caption.words[phrase.noun], []).extend(phrase.boxes)
    named = [i for i, word in enumerate(words) if word in by_noun]
    if not named:
        return {}
    seen = boxes or module.encoder.preprocessing.frame(example.path).seen
    no_weights = np.zeros(module.encoder.grid if boxes is None else len(boxes.boxes))
    maps = {i: box_coverage(GroundedWord(no_weights, seen, tuple(by_noun[words[i]]))).flatten() for i in named}
    return {i: covered for i, covered in maps.items() if covered.any()}


def print_faithfulness(scores: FaithfulnessScores, title: str) -> None:
    """Print the faithfulness of each map, and for the attention maps the differences to random maps."""
    table = Table(Column("map", min_width=12), title=title, title_justify="left")  # fits into 80 columns
    for column in ("rank\ncorr.", "|effect|", "top\ntenth", "deletion", "insertion", "|top\ntenth|"):
        table.add_column(column, justify="right")
    for name, label in FAITHFULNESS.items():
        if name in scores.maps:
            table.add_row(label, *("-" if value is None else f"{value:.3f}" for value in scores.maps[name]))
    console = Terminal(highlight=False, soft_wrap=True)
    console.print(table)
    for field, (difference, low, high, _) in scores.against.get(RANDOM, {}).get(ATTENTION, {}).items():
        console.print(f"{field} of attention minus that of random maps: {difference:+.3f} [{low:+.3f}, {high:+.3f}]")
    console.print(
        f"{scores.num_words:,} words, {scores.num_curves:,} of them with curves; the largest effect of any region is "
        f"{scores.largest_effect:.3f} nats in the median\n"
    )


def faithfulness_figures(scores: FaithfulnessScores) -> dict[str, Any]:
    """Return the faithfulness of the maps by their names in result files; rates of attention in percent."""
    figures: dict[str, Any] = {}
    for field, value in scores.maps.get(ATTENTION, MapFaithfulness())._asdict().items():
        is_rate = field.endswith("top_tenth") and value is not None
        figures[f"attention_{field}"] = 100 * value if is_rate else value
    against = {
        other: {name: _as_dicts(differences) for name, differences in by_map.items()}
        for other, by_map in scores.against.items()
    }
    return figures | {
        "faithfulness": {
            "maps": _as_dicts(scores.maps),
            "intervals": scores.intervals,
            "against": against,
            "largest_effect": scores.largest_effect,
            "words": scores.num_words,
            "curves": scores.num_curves,
        }
    }


def _as_dicts(values: Mapping[str, Difference] | Mapping[str, MapFaithfulness]) -> dict[str, dict[str, Any]]:
    return {name: value._asdict() for name, value in values.items()}
