import math

import numpy as np
import pytest
import torch
from traces import trace_of

from showattendtell.metrics.attention import (
    GroundedWord,
    WordClasses,
    attention_statistics,
    boxes_on_grid,
    center_prior,
    centers_inside,
    compare_maps,
    covered_areas,
    score_attention,
)
from showattendtell.text.vocabulary import EOS, PAD, SPECIAL, Vocabulary
from showattendtell.types import WHOLE, Box, CaptionerOutput

SEEN = Box(0.25, 0.0, 0.75, 1.0)
"""The middle half of an image; a 2 x 4 grid on it has cells an eighth of the image wide and half of it high."""


def peaked(row: int, column: int) -> np.ndarray:
    """0.3 in one cell of a 2 x 4 grid, 0.1 in the others."""
    weights = np.full((2, 4), 0.1)
    weights[row, column] = 0.3
    return weights


def around(x: float, y: float) -> Box:
    """A small box."""
    return Box(x - 0.01, y - 0.01, x + 0.01, y + 0.01)


@pytest.mark.parametrize(
    ("row", "column", "x", "y"), [(0, 0, 0.3125, 0.25), (1, 3, 0.6875, 0.75), (0, 2, 0.5625, 0.25)]
)
def test_a_hit_is_a_peak_whose_cells_center_lies_in_the_box(row: int, column: int, x: float, y: float):
    assert compare_maps(GroundedWord(peaked(row, column), SEEN, (around(x, y),))).model.hit == 1


def test_equal_peaks_hit_in_proportion():
    weights = np.array([[0.2, 0.2], [0.2, 0.4]])
    look = GroundedWord(weights, WHOLE, (Box(0.5, 0, 1, 1),))
    assert compare_maps(look).model.hit == 1
    assert compare_maps(look._replace(weights=np.array([[0.3, 0.3], [0.1, 0.3]]))).model.hit == pytest.approx(2 / 3)


def test_correctness_worked_by_hand():
    """The left cells are covered by half, the lower right one by a quarter: 0.5 (0.1 + 0.3) + 0.25 * 0.4."""
    weights = np.array([[0.1, 0.2], [0.3, 0.4]])
    boxes = (Box(0, 0, 0.25, 1), Box(0.5, 0.5, 0.75, 0.75))
    assert compare_maps(GroundedWord(weights, WHOLE, boxes)).model.correctness == pytest.approx(0.3)


def test_a_thing_outside_of_what_is_seen_is_found_by_no_map():
    glance = compare_maps(GroundedWord(peaked(0, 0), SEEN, (Box(0.0, 0.0, 0.2, 1.0),)))
    assert [glance.model, glance.uniform, glance.center] == [(0, 0)] * 3


@pytest.mark.parametrize(("rows", "columns", "peaks"), [(7, 7, 1), (14, 14, 4), (4, 9, 2), (1, 2, 2)])
def test_the_center_prior_is_a_gaussian_of_a_quarter_of_the_side_whose_middle_cells_tie(
    rows: int, columns: int, peaks: int
):
    prior = center_prior(rows, columns)
    assert prior.sum() == pytest.approx(1)
    y, x = (np.arange(rows) + 0.5) / rows - 0.5, (np.arange(columns) + 0.5) / columns - 0.5
    density = np.exp(-(y[:, None] ** 2 + x**2) / (2 * 0.25**2))
    np.testing.assert_allclose(prior, density / density.sum(), rtol=1e-12)
    np.testing.assert_array_equal(prior, prior[::-1, ::-1])
    assert (prior == prior.max()).sum() == peaks


@pytest.mark.parametrize("seed", range(20))
def test_coverage_is_what_a_fine_raster_counts(seed: int):
    """Boxes and grid drawn on 840 x 840 points; all edges lie between them, so that the count is exact."""
    rng = np.random.default_rng(seed)
    rows, columns = map(int, rng.choice([1, 2, 3, 4, 5, 7, 8], size=2))
    edges = np.sort(rng.integers(-200, 1041, size=(int(rng.integers(1, 5)), 2, 2)), axis=1)
    boxes = tuple(Box(*(corner / 840).ravel()) for corner in edges)
    y, x = (np.arange(840)[:, None] + 0.5) / 840, (np.arange(840) + 0.5) / 840
    drawn = np.any([(b.left < x) & (x < b.right) & (b.top < y) & (y < b.bottom) for b in boxes], axis=0)
    expected = drawn.reshape(rows, 840 // rows, columns, 840 // columns).mean(axis=(1, 3))
    seen = Box(0.2, 0.1, 0.6, 0.9)  # the same scene, moved into a part of the image
    moved = tuple(Box(0.2 + 0.4 * b.left, 0.1 + 0.8 * b.top, 0.2 + 0.4 * b.right, 0.1 + 0.8 * b.bottom) for b in boxes)
    both = np.stack([boxes_on_grid(*each, rows, columns) for each in ((boxes, WHOLE), (moved, seen))])
    np.testing.assert_allclose(covered_areas(both, rows, columns), [expected] * 2, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_cells_inside_are_those_whose_center_a_box_contains(seed: int):
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.uniform(-0.2, 1.2, size=(3, 2, 2)), axis=1)
    boxes = tuple(Box(*corner.ravel()) for corner in corners)
    inside = centers_inside(boxes_on_grid(boxes, WHOLE, 6, 9), 6, 9)
    for row, column in np.ndindex(6, 9):
        x, y = (column + 0.5) / 9, (row + 0.5) / 6
        assert inside[row, column] == any(b.left <= x <= b.right and b.top <= y <= b.bottom for b in boxes)


def test_scores_are_means_over_words_and_by_kind_the_commonest_first():
    assert score_attention([])["attention_baselines"]["center"] == means(0, 0, 0)
    hit = GroundedWord(peaked(0, 1), SEEN, (Box(0.375, 0.0, 0.5, 0.5),), "people")
    miss = GroundedWord(peaked(0, 0), SEEN, (Box(0.375, 0.0, 0.5, 0.5),), "people")
    scores = score_attention(
        [compare_maps(look) for look in (hit._replace(kind="animals"), hit, miss, hit._replace(kind=""))]
    )
    assert scores.items() >= means(75, pytest.approx(100 * (0.3 * 3 + 0.1) / 4), 4).items()
    assert scores["attention_baselines"]["uniform"] == means(12.5, pytest.approx(12.5), 4)
    assert list(scores["attention_by_kind"].items()) == [
        ("people", means(50, pytest.approx(20), 2)),
        ("animals", means(100, pytest.approx(30), 1)),
    ]


def means(hits: float, correctness: float, words: int) -> dict[str, float]:
    return {"pointing_game": hits, "attention_correctness": correctness, "pointing_game_words": words}


VOCABULARY = Vocabulary([*SPECIAL, "a", "dog", "on"])
A, DOG, ON = range(4, 7)


def trace(weights: list[list[list[float]]], gates: list[list[float]] | None = None) -> CaptionerOutput:
    maps = torch.tensor(weights)
    betas = torch.ones(maps.shape[:2]) if gates is None else torch.tensor(gates)
    return trace_of(torch.zeros(*maps.shape[:2], 7), maps, betas)


def test_the_figures_of_a_map_worked_by_hand():
    maps = [[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]]
    tokens = torch.tensor([[A, DOG, EOS], [DOG, EOS, PAD]])
    figures = attention_statistics(trace(maps), tokens)
    entropy = figures["entropy"]
    assert entropy[1] == 5
    torch.testing.assert_close(entropy[0].item(), 2 * math.log(2) / 5)
    movement = figures["movement"]
    assert movement[1] == 3
    torch.testing.assert_close(movement[0].item(), (0.5 + 0.5 + 0.0) / 3)
    first, second = (1 + 1 + 0.5) / 3, (1 + 0 + 0) / 2
    torch.testing.assert_close(figures["coverage"][0].item(), (first + second) / 2)


def test_beta_is_reported_by_the_class_of_the_word_that_is_said():
    tokens = torch.tensor([[A, DOG, ON, A, EOS], [DOG, EOS, PAD, PAD, PAD]])
    gates = [[0.1, 0.9, 0.3, 0.5, 0.2], [0.7, 0.4, 1.0, 1.0, 1.0]]
    betas = WordClasses(VOCABULARY).betas(trace([[[1.0]] * 5] * 2, gates), tokens)
    output = {name: (round(mean.item(), 4), count) for name, (mean, count) in betas.items()}
    assert output == {"determiner": (0.3, 2), "preposition": (0.3, 1), "end": (0.3, 2), "content": (0.8, 2)}
