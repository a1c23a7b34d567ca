import itertools

import numpy as np
import pytest
from scipy.stats import bootstrap, multinomial

from showattendtell.metrics.bootstrap import (
    Array,
    ImageMeans,
    compare,
    compare_with_first,
    corpus_scores,
    draw_copies,
    intervals,
    resample,
)
from showattendtell.metrics.ngrams import measure_bleu
from showattendtell.metrics.tokenizers import pair_up

REFERENCES = [
    [line.split() for line in lines]
    for lines in (
        ["a dog is running on the grass", "the brown dog runs over the grass"],
        ["two men are playing football", "two men play a game on a field"],
        ["a red car stands near a tall tree", "the red car is parked near a house"],
        ["a child climbs up the stairs"],
    )
]
FIRST = [
    line.split() for line in ("a dog runs on the grass", "two men play", "a red car near a tree", "a child climbs")
]
SECOND = [line.split() for line in ("a brown dog", "two men on a field", "a red car is parked near a tree", "stairs")]


def bleu(hypotheses, references) -> dict[str, float]:
    return corpus_scores([measure_bleu(pair_up(hypotheses, references))])


def test_the_interval_of_a_mean_holds_95_percent_of_the_resamples():
    values = np.array([0.0, 10.0, 20.0, 60.0])
    [(name, (low, high))] = intervals({"score": ImageMeans("mean", values)}, 4, seed=1, num_resamples=20_000).items()
    _, copies = every_resample(4)
    expected = np.percentile(copies @ values / 4, (2.5, 97.5), method="inverted_cdf")
    assert (name, low, high) == ("mean", *expected)


def every_resample(num_images: int) -> tuple[list[tuple[int, ...]], Array]:
    """All ways to draw as many images as there are, each as likely as another; and as copies."""
    ways = list(itertools.product(range(num_images), repeat=num_images))
    return ways, np.array([np.bincount(way, minlength=num_images) for way in ways], dtype=float)


def test_resamples_are_drawn_with_their_multinomial_probability():
    drawn = draw_copies(3, 100_000, seed=1)
    for copies in {tuple(row) for row in every_resample(3)[1].tolist()}:
        share = (drawn == copies).all(axis=1).mean()
        assert share == pytest.approx(multinomial.pmf(copies, 3, [1 / 3] * 3), abs=0.005)
    assert (draw_copies(3, 100_000, seed=1) == drawn).all()


def test_a_corpus_figure_over_every_resample_is_that_of_the_images_repeated():
    images = 3
    ways, copies = every_resample(images)
    systems = [FIRST[:images], SECOND[:images]]
    measured = [{"bleu": measure_bleu(pair_up(system, REFERENCES[:images]))} for system in systems]
    comparison = compare(*(resample(one, copies) for one in measured))
    for name in ("bleu1", "bleu2", "bleu1_with_penalty", "brevity_penalty"):
        repeated = [
            [bleu([system[i] for i in way], [REFERENCES[i] for i in way])[name] for way in ways] for system in systems
        ]
        differences = np.subtract(repeated[1], repeated[0])
        whole = [bleu(system, REFERENCES[:images])[name] for system in systems]
        found = comparison[name]
        assert found["difference"] == pytest.approx(whole[1] - whole[0], abs=1e-9)
        assert (found["low"], found["high"]) == pytest.approx(np.percentile(differences, [2.5, 97.5]), abs=1e-9)
        assert found["higher"] == pytest.approx(np.mean(differences > 0) + np.mean(differences == 0) / 2)


def test_scipy_gives_the_same_interval_of_a_mean():
    generator = np.random.default_rng(0)
    a = generator.gamma(2, 10, size=80)
    b = a + generator.normal(2, 8, size=80)
    [found] = compare_with_first([{"cider": ImageMeans("cider", scores)} for scores in (a, b)], 80, 40_000, seed=1)
    theirs = bootstrap(
        (a, b),
        lambda first, second, axis: second.mean(axis) - first.mean(axis),
        paired=True,
        method="percentile",
        n_resamples=40_000,
        rng=np.random.default_rng(2),
    )
    difference = found["cider"]
    assert difference["difference"] == pytest.approx(np.mean(b - a))
    assert (difference["low"], difference["high"]) == pytest.approx(tuple(theirs.confidence_interval), abs=0.06)
    assert difference["higher"] == pytest.approx(np.mean(theirs.bootstrap_distribution > 0), abs=0.005)
