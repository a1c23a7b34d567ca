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
    area,
    num_deleted,
    rank_agreement,
)
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunScores
from showattendtell.inference.predictions import Predictor, read_grids
from showattendtell.metrics.attention import GroundedWord, box_coverage, center_prior, center_prior_of
from showattendtell.models.captioner import Captioner
from showattendtell.types import Example, RegionBoxes
from showattendtell.visualization.tables import Labels, Terminal

CENTER, BOX = "center", "box"
GRADIENT, INTEGRATED, EFFECT = "gradient_input", "integrated_gradients", "leave_one_out"
"""Names of maps: the center prior, the ground-truth boxes of the word, two attributions by gradients, and the effects
themselves."""

INTEGRATION_STEPS = 8


class FaithfulnessMetric:
    """Whether attention maps show the regions that words depend on."""

    labels: Labels = MappingProxyType({})

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` as `check_faithfulness`."""
        check_faithfulness(run)

    def measure(self, run: EvaluationRun, captions: Captions, seed: int) -> RunScores:
        """Print and return the scores."""
        best = {image: image_captions[0] for image, image_captions in captions.items()}
        scores = measure_faithfulness(run.predictors[0], run.examples, best, seed)
        print_faithfulness(scores, "faithfulness of the maps at the generated words")
        return RunScores(faithfulness_figures(scores))


def check_faithfulness(run: EvaluationRun) -> None:
    """Raise `UserError` for several models, or a model of which no region can be left out in a comparable way."""
    if len(run.models) > 1:
        raise UserError("faithfulness is scored for one model; give a single checkpoint, or leave it out of metrics")
    if run.vocabulary.languages:
        raise UserError("faithfulness is scored for models of one language; leave it out of metrics")
    check_intervention(run.models[0].module)


def measure_faithfulness(
    predictor: Predictor, examples: Sequence[Example], captions: Mapping[str, Sequence[str]], seed: int = 0
) -> FaithfulnessScores:
    """Measure how faithful the attention maps of captions are.

    The effect of every region is measured at every word. The curves of deletion and insertion, which take the most
    time, are measured at one word per caption: one with ground-truth boxes if there is one, otherwise a content word.

    Args:
        captions: the caption of each image, in words.
        seed: seed of the random maps and of the choice of words.

    Raises:
        UserError: attention samples its regions, or images have a single region.
    """
    from showattendtell.extensions.trust.metrics import Faithfulness  # torchmetrics takes seconds to import

    check_intervention(predictor.module)
    faithfulness, generator = Faithfulness(), np.random.default_rng(seed)
    grids = read_grids(predictor, examples, "leaving out regions")
    encoder = predictor.module.encoder
    for example, grid in zip(examples, chain.from_iterable(grids), strict=True):
        [regions], words = encoder.prepare_regions(grid.unsqueeze(0)), captions[example.image]
        if words and len(regions) > 1:
            boxes = encoder.boxes_of(grid)
            faithfulness.update(faithfulness_of(predictor.module, regions, words, example, generator, boxes))
    return faithfulness.scores()


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
    captioner, num_regions = module.captioner, len(regions)
    tokens = torch.tensor(module.vocabulary.encode(words), device=regions.device)
    with torch.no_grad():
        image_index = torch.zeros(1, dtype=torch.long, device=regions.device)
        outputs = captioner(regions.unsqueeze(0), image_index, tokens.unsqueeze(0))
    alpha = outputs.weights[0].double().cpu().numpy()  # (T, L)
    log_p, effects = region_effects(captioner, regions, tokens)
    center = center_prior(*module.encoder.grid).flatten() if boxes is None else center_prior_of(boxes)
    grounded = box_maps(module, words, example, boxes)
    candidates = list(grounded) or [n for n, word in enumerate(words) if word_class(word) == "content"] or [0]
    with_curve = int(generator.choice(candidates))
    for i in range(len(words)):
        maps = {ATTENTION: alpha[i], RANDOM: generator.random(num_regions), CENTER: center}
        if i == with_curve:
            maps |= {EFFECT: effects[i], **gradient_maps(captioner, regions, tokens, i)}
            maps |= {BOX: grounded[i]} if i in grounded else {}
        agreement = {name: rank_agreement(weights, effects[i]) for name, weights in maps.items()}
        if i == with_curve:
            curves = areas(captioner, regions, tokens, i, maps, float(np.exp(log_p[i])), generator)
            for name, (deletion, insertion) in curves.items():
                agreement[name] = agreement[name]._replace(deletion=deletion, insertion=insertion)
        yield WordFaithfulness(agreement, float(effects[i].max()), example.image)


@torch.no_grad()
def log_probs_with(
    captioner: Captioner, regions: Tensor, tokens: Tensor, parts: Tensor, word: int | None = None
) -> Tensor:
    """Return log p of the words of a caption `tokens` (T,) for an image of which only some regions are kept.

    Args:
        regions: (L, D).
        parts: (R, K) indices of the regions in each set.
        word: index of the only word whose log p is needed.

    Returns:
        (R, T), or (R, 1) if only one word is needed.
    """
    prefix = tokens if word is None else tokens[: word + 1]
    captions = prefix.expand(len(parts), -1)
    initial = captioner.init_state(regions[parts])
    rows = torch.arange(len(parts), device=regions.device)
    output = captioner(initial[0].regions, rows, captions, initial=initial)
    features, indices = output.output_features, output.indices
    if word is not None:
        last = indices % len(prefix) == word
        features, indices = features.select(last), indices[last]
    log_p = -features.cross_entropy(captions.flatten()[indices]).nll
    by_step = log_p.new_zeros(captions.numel()).index_copy(0, indices, log_p).view_as(captions)
    return by_step if word is None else by_step[:, word:]


def region_effects(captioner: Captioner, regions: Tensor, tokens: Tensor) -> tuple[Array, Array]:
    """Return log p of the words (T,), and the effect of each region on each word (T, L)."""
    indices = torch.arange(len(regions), device=regions.device)
    others = indices.expand(len(regions), -1)[~torch.eye(len(regions), dtype=torch.bool, device=regions.device)]
    without = log_probs_with(captioner, regions, tokens, others.view(len(regions), -1)).double().cpu().numpy()  # (L, T)
    [log_p] = log_probs_with(captioner, regions, tokens, indices.unsqueeze(0)).double().cpu().numpy()
    return log_p, log_p[:, np.newaxis] - without.T


def areas(
    captioner: Captioner,
    regions: Tensor,
    tokens: Tensor,
    word: int,
    maps: Mapping[str, Array],
    p_all: float,
    generator: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Return the areas of the deletion and the insertion curve of a word for each map (L,).

    Equal weights are ordered at random.

    Args:
        p_all: p of the word with all regions.
    """
    num_regions = len(regions)
    ties = generator.random(num_regions)
    orders = torch.from_numpy(np.stack([np.lexsort((ties, -weights)) for weights in maps.values()]))
    deleted, inserted = [np.array(p_all)], list[Array]()
    removed = num_deleted(num_regions)
    for n in removed:
        sets = torch.cat([orders[:, n:], orders[:, : num_regions - n]])  # without, and with only, the first
        p = log_probs_with(captioner, regions, tokens, sets.to(regions.device), word).exp().double().cpu().numpy()
        without, inserted_p = p[:, 0].reshape(2, -1)
        deleted.append(without)
        inserted.append(inserted_p)
    fractions = [n / num_regions for n in (0, *removed)]
    deletion_curves = zip(*(np.broadcast_to(p, len(maps)) for p in deleted), strict=True)
    insertion_curves = zip(*(np.broadcast_to(p, len(maps)) for p in (*reversed(inserted), deleted[0])), strict=True)
    insertion_fractions = [1 - fraction for fraction in reversed(fractions)]
    return {
        name: (area(fractions, deletion), area(insertion_fractions, insertion))
        for name, deletion, insertion in zip(maps, deletion_curves, insertion_curves, strict=True)
    }


def gradient_maps(captioner: Captioner, regions: Tensor, tokens: Tensor, word: int) -> dict[str, Array]:
    """Return two attributions (L,) of log p of a word to the regions.

    gradient_input        sum_d a_id dlog p / da_id
    integrated_gradients  the same with the mean gradient on the way from regions of zeros to the regions (Sundararajan
                          et al. 2017), by the midpoint rule; its sum is log p less that of an image of zeros
    """
    fractions = [*((step + 0.5) / INTEGRATION_STEPS for step in range(INTEGRATION_STEPS)), 1.0]
    points = regions * torch.tensor(fractions, device=regions.device).view(-1, 1, 1)  # (S + 1, L, D)
    points.requires_grad_()
    captions = tokens[: word + 1].expand(len(fractions), -1)
    with torch.enable_grad():
        output = captioner(points, torch.arange(len(fractions), device=regions.device), captions)
        last = output.indices % (word + 1) == word
        features = output.output_features.select(last)
        loss = features.cross_entropy(captions.flatten()[output.indices[last]]).loss
        [gradients] = torch.autograd.grad(-loss.sum(), points)
    mean = gradients[:-1].mean(dim=0)
    maps = ((gradient * regions).sum(dim=1).double().cpu().numpy() for gradient in (gradients[-1], mean))
    return dict(zip((GRADIENT, INTEGRATED), maps, strict=True))


def box_maps(
    module: ImageCaptioner, words: Sequence[str], example: Example, boxes: RegionBoxes | None = None
) -> dict[int, Array]:
    """Return for each word that a reference caption uses for an object with ground-truth boxes the fraction of each
    region (L,) that the boxes cover; not if they are outside of the part that the encoder sees."""
    by_noun: dict[str, tuple[object, ...]] = {}
    for caption in example.captions:
        for phrase in caption.phrases:
            noun = caption.words[phrase.noun]
            by_noun[noun] = (*by_noun.get(noun, ()), *phrase.boxes)
    maps = {}
    if set(by_noun) & set(words):
        seen = boxes or module.encoder.preprocessing.frame(example.path).seen
        no_weights = np.zeros(module.encoder.grid if boxes is None else len(boxes.boxes))
        for i, word in enumerate(words):
            if word in by_noun:
                grounded = GroundedWord(no_weights, seen, by_noun[word])  # type: ignore[arg-type]
                maps[i] = box_coverage(grounded).flatten()
    return {i: covered for i, covered in maps.items() if covered.any()}


FAITHFULNESS = {
    "attention": "attention",
    "random": "random maps",
    "center": "center prior",
    "gradient_input": "gradient x input",
    "integrated_gradients": "integrated gradients",
    "leave_one_out": "the effects themselves",
    "box": "ground-truth boxes",
}
"""Labels of the maps whose faithfulness is measured."""


def print_faithfulness(scores: FaithfulnessScores, title: str) -> None:
    """Print the faithfulness of each map, and for the attention maps the differences to random maps."""
    table = Table(Column("map", min_width=12), title=title, title_justify="left")  # fits into 80 columns
    for column in ("rank\ncorr.", "|effect|", "top\ntenth", "deletion", "insertion", "|top\ntenth|"):
        table.add_column(column, justify="right")
    for name, label in FAITHFULNESS.items():
        if name in scores.maps:
            map_scores = scores.maps[name]
            forms = zip(map_scores, ("{:+.2f}", "{:+.2f}", "{:.1%}", "{:.3f}", "{:.3f}", "{:.1%}"), strict=True)
            table.add_row(label, *("-" if value is None else form.format(value) for value, form in forms))
    console = Terminal(highlight=False, soft_wrap=True)
    console.print(table)
    for field, (low, high) in scores.intervals.get("attention", {}).items():
        console.print(f"{field} of attention, 95 % interval: {low:.3f} to {high:.3f}")
    for field, (difference, low, high, _) in scores.against.get("random", {}).get("attention", {}).items():
        console.print(f"{field} of attention minus that of random maps: {difference:+.3f} [{low:+.3f}, {high:+.3f}]")
    console.print(
        f"{scores.num_words:,} words, {scores.num_curves:,} of them with curves; the largest effect of any region is "
        f"{scores.largest_effect:.3f} nats in the median\n"
    )


def faithfulness_figures(scores: FaithfulnessScores) -> dict[str, Any]:
    """Return the faithfulness of the maps by their names in result files; rates in percent."""
    against = {
        other: {
            name: {field: value._asdict() for field, value in map_scores_by_name.items()}
            for name, map_scores_by_name in maps.items()
        }
        for other, maps in scores.against.items()
    }
    attention = scores.maps.get("attention", MapFaithfulness())
    return {
        "attention_rank_correlation": attention.rank_correlation,
        "attention_magnitude_correlation": attention.magnitude_correlation,
        "attention_top_tenth": None if attention.top_tenth is None else 100 * attention.top_tenth,
        "attention_deletion": attention.deletion,
        "attention_insertion": attention.insertion,
        "attention_magnitude_top_tenth": (
            None if attention.magnitude_top_tenth is None else 100 * attention.magnitude_top_tenth
        ),
        "faithfulness": {
            "maps": {name: value._asdict() for name, value in scores.maps.items()},
            "intervals": scores.intervals,
            "against": against,
            "largest_effect": scores.largest_effect,
            "words": scores.num_words,
            "curves": scores.num_curves,
        },
    }
