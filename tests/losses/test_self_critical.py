"""The gradient of samples' rewards against that of the expected reward, for which every caption is counted."""

import itertools
from functools import partial

import pytest
import torch
from estimators import assert_unbiased, gradient
from slow_cases import slow_after
from torch import Tensor

from showattendtell.losses.self_critical import Reward, SelfCriticalLoss, log_prob
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner, eval_mode
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.scores import AdditiveScore
from showattendtell.text.vocabulary import EOS, PAD, SPECIAL, START, Vocabulary
from showattendtell.types import Batch

VOCABULARY = Vocabulary([*SPECIAL, "dog", "cat"])
SAYABLE = [token for token in range(len(VOCABULARY)) if token not in (PAD, START)]
L, D, N, LONGEST = 2, 4, 3, 3
REGIONS = torch.randn(2, L, D, generator=torch.Generator().manual_seed(0)).double()
REFERENCES = [[("dog", "cat"), ("dog",)], [("cat",), ("cat", "dog")], [("dog", "dog", "cat"), ("cat",)]]
BATCH = Batch(REGIONS, torch.tensor([0, 0, 1]), torch.tensor([[4, EOS], [5, EOS], [4, EOS]]), torch.tensor([2, 0]))
"""Two captions of the image at place 2 in the training split, and one of that at place 0."""


def tiny(attention: str, **settings: object) -> Captioner:
    """Random weights, in training, with dropout that would be seen."""
    torch.manual_seed(3)
    kinds = {"soft": SoftAttention, "hard": partial(HardAttention, **settings)}
    kind = kinds[attention]
    captioner = Captioner(
        kind(D, N, score=partial(AdditiveScore, width=3)),
        LSTMDecoder(len(VOCABULARY), D, embedding_dim=3, hidden_dim=N, dropout=0.5),
    )
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return captioner.double().train()


def critic(**settings: object) -> SelfCriticalLoss:
    return SelfCriticalLoss(Reward(**{"cider": 1.0, "max_length": LONGEST, **settings}), VOCABULARY, REFERENCES)


def every_caption() -> list[list[int]]:
    """Those that end within so many words, and those that are cut off there."""
    words = [token for token in SAYABLE if token != EOS]
    ended = [[*said, EOS] for length in range(LONGEST) for said in itertools.product(words, repeat=length)]
    return ended + [list(said) for said in itertools.product(words, repeat=LONGEST)]


def expected_reward(captioner: Captioner, owner: SelfCriticalLoss) -> Tensor:
    """The mean over the batch's captions of sum_y p(y|a) r(y); under hard attention also over all the locations."""
    captions = every_caption()
    tokens = torch.tensor([[*said, *[PAD] * (LONGEST - len(said))] for said in captions])
    paths = [None]
    if isinstance(captioner.attention, HardAttention) and captioner.attention.inference_mode == "sample":
        paths = [torch.tensor(path).view(1, -1, 1) for path in itertools.product(range(L), repeat=LONGEST)]
    total = torch.zeros((), dtype=torch.float64)
    for row, weight in ((0, 2 / 3), (1, 1 / 3)):
        worth = owner.score_captions(captions, BATCH.positions[row : row + 1])["reward"].flatten().double()
        p = torch.zeros(len(captions), dtype=torch.float64)
        for path in paths:
            # a path's steps behind a caption's end are no part of it, and are counted once for each location
            given = None if path is None else path.expand(len(tokens), -1, -1)
            copies = 1 if path is None else L ** (LONGEST - (tokens != PAD).sum(dim=1)).double()
            p = p + log_prob(captioner, REGIONS[row : row + 1], tokens, given).exp() / copies
        torch.testing.assert_close(p.sum(), torch.ones_like(p.sum()))
        total = total + weight * (p * worth).sum()
    return total


CAPTIONERS = {
    "soft": ("soft", {}),
    "hard": ("hard", {"inference_mode": "sample"}),
    "hard, expectation": ("hard", {"inference_mode": "expectation"}),
}


@pytest.mark.parametrize("baseline", slow_after(1, ["others", "greedy"]))
@pytest.mark.parametrize(("attention", "settings"), slow_after(1, CAPTIONERS.values()), ids=CAPTIONERS)
def test_the_mean_over_samples_is_the_gradient_of_the_expected_reward(
    attention: str, settings: dict[str, str], baseline: str
):
    captioner, owner = tiny(attention, **settings), critic(baseline=baseline, num_samples=30)
    with eval_mode(captioner):
        exact = -gradient(expected_reward(captioner, owner), captioner)
    assert_unbiased(
        lambda: owner(captioner, REGIONS, BATCH).terms["reward"], captioner, exact, batches=90, sigmas=6, noise=0.25
    )


def test_the_parts_of_the_reward_are_weighted_and_distinguished():
    torch.manual_seed(0)
    captioner = tiny("soft")
    output = critic(cider=0.5, bleu4=2.0, num_samples=8)(captioner, REGIONS, BATCH).metrics
    assert output["sampled_reward"] == pytest.approx(0.5 * output["sampled_cider"] + 2.0 * output["sampled_bleu4"])
    assert 0 < output["sampled_unended"] < 100
    assert 0 < output["sampled_words"] < LONGEST
