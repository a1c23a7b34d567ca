"""Measurement of the faithfulness of attention: captions are scored again with regions of their images left out.

Leaving out a region is exact. The decoder reads the others as if the encoder had never returned it: attention
distributes its weight over them, and the initial state is computed from their mean. The encoder has mixed neighbouring
regions before, so a region also knows of its surroundings. Sizes are those of `showattendtell.types`; R is the number
of sets of regions that are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from showattendtell.data.tokenizers import word_class
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.inference.evaluator import EvaluationRun
from showattendtell.inference.predictions import Predictor, read_grids
from showattendtell.metrics.attention import GroundedWord, centre_prior, centre_prior_of, coverage
from showattendtell.metrics.faithfulness import (
    ATTENTION,
    RANDOM,
    Array,
    FaithfulnessScores,
    WordFaithfulness,
    area,
    num_deleted,
    rank_agreement,
)
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels.mixture import words_cross_entropy
from showattendtell.types import Example, RegionBoxes
from showattendtell.visualization.tables import faithfulness_figures, print_faithfulness

CENTRE, BOX = "centre", "box"
GRADIENT, INTEGRATED, EFFECT = "gradient_input", "integrated_gradients", "leave_one_out"
"""Names of maps: the centre prior, the ground-truth boxes of the word, two attributions by gradients, and the effects
themselves."""

INTEGRATION_STEPS = 8


def evaluate_faithfulness(
    run: EvaluationRun, written: Mapping[str, Sequence[Sequence[str]]], seed: int
) -> dict[str, Any]:
    """Print and return the faithfulness of the attention maps of captions, by their names in result files.

    Args:
        written: captions of each image in words, best first.

    Raises:
        UserError: as `check_faithfulness`.
    """
    check_faithfulness(run)
    captions = {image: said[0] for image, said in written.items()}
    scores = measure_faithfulness(run.writers[0], run.examples, captions, seed)
    print_faithfulness(scores, "faithfulness of the maps at the generated words")
    return faithfulness_figures(scores)


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
    from showattendtell.metrics import Faithfulness  # torchmetrics takes seconds to import

    check_intervention(predictor.module)
    faithfulness, generator = Faithfulness(), np.random.default_rng(seed)
    grids = read_grids(predictor, examples, "leaving out regions")
    encoder = predictor.module.encoder
    for example, grid in zip(examples, chain.from_iterable(grids), strict=True):
        [regions], words = encoder.locate(grid.unsqueeze(0)), captions[example.image]
        if words and len(regions) > 1:
            boxes = encoder.boxes_of(grid)
            faithfulness.update(faithfulness_of(predictor.module, regions, words, example, generator, boxes))
    return faithfulness.scores()


def check_intervention(module: ImageCaptioner) -> None:
    """Raise `UserError` for a model of which no region can be left out in a comparable way."""
    attention = module.captioner.attention
    if attention.stochastic and attention.inference_mode == "sample":
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
        trace = captioner(regions.unsqueeze(0), torch.zeros(1, dtype=torch.long), tokens.unsqueeze(0))
    alpha = trace.weights[0].double().cpu().numpy()  # (T, L)
    log_p, effects = leave_one_out(captioner, regions, tokens)
    centre = centre_prior(*module.encoder.grid).flatten() if boxes is None else centre_prior_of(boxes)
    grounded = box_maps(module, words, example, boxes)
    candidates = list(grounded) or [n for n, word in enumerate(words) if word_class(word) == "content"] or [0]
    with_curve = int(generator.choice(candidates))
    for number in range(len(words)):
        maps = {ATTENTION: alpha[number], RANDOM: generator.random(num_regions), CENTRE: centre}
        if number == with_curve:
            maps |= {EFFECT: effects[number], **gradient_maps(captioner, regions, tokens, number)}
            maps |= {BOX: grounded[number]} if number in grounded else {}
        agreement = {name: rank_agreement(weights, effects[number]) for name, weights in maps.items()}
        if number == with_curve:
            curves = areas(captioner, regions, tokens, number, maps, float(np.exp(log_p[number])), generator)
            for name, (deletion, insertion) in curves.items():
                agreement[name] = agreement[name]._replace(deletion=deletion, insertion=insertion)
        yield WordFaithfulness(agreement, float(effects[number].max()), example.image)


@torch.no_grad()
def log_probs_with(
    captioner: Captioner, regions: Tensor, tokens: Tensor, kept: Tensor, word: int | None = None
) -> Tensor:
    """Return log p of the words of a caption `tokens` (T,) for an image of which only some regions are kept.

    Args:
        regions: (L, D).
        kept: (R, K) indices of the regions in each set.
        word: index of the only word whose log p is needed.

    Returns:
        (R, T), or (R, 1) if only one word is needed.
    """
    read = tokens if word is None else tokens[: word + 1]
    captions = read.expand(len(kept), -1)
    initial = captioner.init_state_of_parts(regions, kept)
    rows = torch.arange(len(kept), device=regions.device)
    output = captioner(initial[0].regions, rows, captions, initial=initial)
    features, places = output.output_features, output.places
    if word is not None:
        last = places % len(read) == word
        features, places = features.select(last), places[last]
    log_p = -words_cross_entropy(features, captions.flatten()[places]).nll
    by_place = log_p.new_zeros(captions.numel()).index_copy(0, places, log_p).view_as(captions)
    return by_place if word is None else by_place[:, word:]


def leave_one_out(captioner: Captioner, regions: Tensor, tokens: Tensor) -> tuple[Array, Array]:
    """Return log p of the words (T,), and the effect of each region on each word (T, L)."""
    places = torch.arange(len(regions), device=regions.device)
    others = places.expand(len(regions), -1)[~torch.eye(len(regions), dtype=torch.bool, device=regions.device)]
    without = log_probs_with(captioner, regions, tokens, others.view(len(regions), -1)).double().cpu().numpy()  # (L, T)
    [log_p] = log_probs_with(captioner, regions, tokens, places.unsqueeze(0)).double().cpu().numpy()
    return log_p, log_p[:, np.newaxis] - without.T


def areas(
    captioner: Captioner,
    regions: Tensor,
    tokens: Tensor,
    word: int,
    maps: Mapping[str, Array],
    whole: float,
    generator: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Return the areas of the deletion and the insertion curve of a word for each map (L,).

    Equal weights are ordered at random.

    Args:
        whole: p of the word with all regions.
    """
    num_regions = len(regions)
    ties = generator.random(num_regions)
    orders = torch.from_numpy(np.stack([np.lexsort((ties, -weights)) for weights in maps.values()]))
    deleted, kept = [np.array(whole)], list[Array]()
    removed = num_deleted(num_regions)
    for number in removed:
        sets = torch.cat([orders[:, number:], orders[:, : num_regions - number]])  # without, and with only, the first
        p = log_probs_with(captioner, regions, tokens, sets.to(regions.device), word).exp().double().cpu().numpy()
        without, only = p[:, 0].reshape(2, -1)
        deleted.append(without)
        kept.append(only)
    fractions = [number / num_regions for number in (0, *removed)]
    curves = zip(*(np.broadcast_to(p, len(maps)) for p in deleted), strict=True)
    grown = zip(*(np.broadcast_to(p, len(maps)) for p in (*reversed(kept), deleted[0])), strict=True)
    rising = [1 - fraction for fraction in reversed(fractions)]
    return {
        name: (area(fractions, falling), area(rising, growing))
        for name, falling, growing in zip(maps, curves, grown, strict=True)
    }


def gradient_maps(captioner: Captioner, regions: Tensor, tokens: Tensor, word: int) -> dict[str, Array]:
    """Return two attributions (L,) of log p of a word to the regions.

    gradient_input        sum_d a_id dlog p / da_id
    integrated_gradients  the same with the mean gradient on the way from regions of zeros to the regions (Sundararajan
                          et al. 2017), by the midpoint rule; its sum is log p less that of an image of zeros
    """
    ways = [*((step + 0.5) / INTEGRATION_STEPS for step in range(INTEGRATION_STEPS)), 1.0]
    points = regions * torch.tensor(ways, device=regions.device).view(-1, 1, 1)  # (S + 1, L, D)
    points.requires_grad_()
    captions = tokens[: word + 1].expand(len(ways), -1)
    with torch.enable_grad():
        output = captioner(points, torch.arange(len(ways), device=regions.device), captions)
        last = output.places % (word + 1) == word
        features = output.output_features.select(last)
        learned = words_cross_entropy(features, captions.flatten()[output.places[last]]).learned
        [gradients] = torch.autograd.grad(-learned.sum(), points)
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
        nothing = np.zeros(module.encoder.grid if boxes is None else len(boxes.boxes))
        for number, word in enumerate(words):
            if word in by_noun:
                grounded = GroundedWord(nothing, seen, by_noun[word])  # type: ignore[arg-type]
                maps[number] = coverage(grounded).flatten()
    return {number: covered for number, covered in maps.items() if covered.any()}
