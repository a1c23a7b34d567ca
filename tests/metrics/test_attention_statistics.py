import math

import torch
from traces import trace_of

from showattendtell.data.vocabulary import EOS, PAD, SPECIAL, Vocabulary
from showattendtell.metrics import Means
from showattendtell.metrics.attention_statistics import WordClasses, attention_figures
from showattendtell.types import CaptionerOutput

VOCABULARY = Vocabulary([*SPECIAL, "a", "dog", "on"])
A, DOG, ON = range(4, 7)


def trace(weights: list[list[list[float]]], gates: list[list[float]] | None = None) -> CaptionerOutput:
    maps = torch.tensor(weights)
    betas = torch.ones(maps.shape[:2]) if gates is None else torch.tensor(gates)
    return trace_of(torch.zeros(*maps.shape[:2], 7), maps, betas)


def test_the_figures_of_a_map_worked_by_hand():
    maps = [[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]]
    tokens = torch.tensor([[A, DOG, EOS], [DOG, EOS, PAD]])
    figures = attention_figures(trace(maps), tokens)
    entropy = figures["entropy"]
    assert entropy.of == 5
    torch.testing.assert_close(entropy.mean.item(), 2 * math.log(2) / 5)
    movement = figures["movement"]
    assert movement.of == 3
    torch.testing.assert_close(movement.mean.item(), (0.5 + 0.5 + 0.0) / 3)
    first, second = (1 + 1 + 0.5) / 3, (1 + 0 + 0) / 2
    torch.testing.assert_close(figures["coverage"].mean.item(), (first + second) / 2)


def test_captions_of_one_word_have_no_movement():
    figures = attention_figures(trace([[[0.5, 0.5]]]), torch.tensor([[EOS]]))
    assert figures["movement"] == (0, 0)


def test_beta_is_told_by_the_class_of_the_word_that_is_said():
    tokens = torch.tensor([[A, DOG, ON, A, EOS], [DOG, EOS, PAD, PAD, PAD]])
    gates = [[0.1, 0.9, 0.3, 0.5, 0.2], [0.7, 0.4, 1.0, 1.0, 1.0]]
    betas = WordClasses(VOCABULARY).betas(trace([[[1.0]] * 5] * 2, gates), tokens)
    told = {name: (round(mean.item(), 4), count) for name, (mean, count) in betas.items()}
    assert told == {"determiner": (0.3, 2), "preposition": (0.3, 1), "end": (0.3, 2), "content": (0.8, 2)}


def test_figures_of_uneven_parts_are_pooled_to_those_of_the_whole():
    torch.manual_seed(0)
    weights, tokens = torch.rand(7, 4, 3).softmax(dim=2), torch.randint(4, 7, (7, 4))
    tokens[::2, 2:] = PAD
    tokens[1] = torch.tensor([EOS, PAD, PAD, PAD])
    whole = attention_figures(trace(weights.tolist()), tokens)
    parts = [attention_figures(trace(weights[rows].tolist()), tokens[rows]) for rows in ([0, 3], [1], [2, 4, 5, 6])]
    means = Means()
    for part in parts:
        means.update(part)
    for name, (mean, of) in means.merged_means().items():
        assert of == whole[name].of
        torch.testing.assert_close(mean.float(), whole[name].mean)
