"""The learning rule of hard attention against the gradient of L_s by enumeration of every path, and against the
released code's gradients written by hand."""

import itertools
from functools import partial

import pytest
import torch
from estimators import assert_unbiased, gradient
from slow_cases import slow_after
from torch import Tensor

from showattendtell.losses.caption import negative_log_likelihood, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.scores import AdditiveScore
from showattendtell.text.vocabulary import EOS, PAD

L, T, D, N, V = 3, 3, 4, 3, 6
REGIONS = torch.randn(1, L, D, generator=torch.Generator().manual_seed(0)).double()
CAPTION = torch.tensor([[4, 5, EOS]])
COPIES = 200
"""Copies of the caption in a batch; the batch's gradient is the mean of theirs."""


def tiny(**settings: object) -> Captioner:
    """The same random weights, large enough for maps that are far from uniform."""
    torch.manual_seed(1)
    attention = HardAttention(D, N, score=partial(AdditiveScore, width=3), **{"expectation_prob": 0.0, **settings})
    captioner = Captioner(attention, LSTMDecoder(V, D, embedding_dim=3, hidden_dim=N, dropout=0.0))
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter)
    return captioner.double().train()


def bound(captioner: Captioner) -> Tensor:
    """L_s = sum_s p(s) log p(y|s) over all L^T paths."""
    paths = torch.tensor(list(itertools.product(range(L), repeat=T))).unsqueeze(2)
    rows, tokens = torch.zeros(len(paths), dtype=torch.long), CAPTION.repeat(len(paths), 1)
    trace = captioner(REGIONS, rows, tokens, locations=paths)
    probabilities = trace.sample.log_prob.sum(dim=1).exp()
    torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0).double())
    return -(probabilities * negative_log_likelihood(trace, tokens)).sum()


def without_entropy(baseline: float = 0.0, decay: float = 1.0) -> HardLoss:
    loss = HardLoss(entropy_weight=0.0, baseline_decay=decay, reward_weight=1.0)
    loss.baseline.fill_(baseline)
    return loss.double()


UNBIASED = {
    "reinforce": {},
    "reinforce, three samples": {"num_samples": 3},
    "rloo": {"estimator": "rloo", "num_samples": 4},
}


@pytest.mark.parametrize("baseline", slow_after(1, [0.0, -4.0]))
@pytest.mark.parametrize("settings", UNBIASED.values(), ids=UNBIASED)
def test_the_mean_of_an_unbiased_estimator_is_the_enumerated_gradient(settings: dict[str, object], baseline: float):
    captioner = tiny(**settings)
    exact = gradient(-bound(captioner), captioner)
    loss, rows, tokens = without_entropy(baseline), torch.zeros(COPIES, dtype=torch.long), CAPTION.repeat(COPIES, 1)
    assert_unbiased(
        lambda: total(loss(captioner, REGIONS, rows, tokens).terms), captioner, exact, batches=30, sigmas=4, noise=0.2
    )


def test_the_baseline_follows_the_mean_reward_and_hangs_outside_training():
    captioner, loss = tiny(), HardLoss(baseline_decay=0.9).double()
    expected = 0.0
    for _ in range(3):
        nll = loss(captioner, REGIONS, torch.tensor([0]), CAPTION).nll
        expected = 0.9 * expected - 0.1 * nll.item()
        assert loss.baseline.item() == pytest.approx(expected)
    loss.eval()(captioner, REGIONS, torch.tensor([0]), CAPTION)
    assert loss.baseline.item() == pytest.approx(expected)


def test_the_expectation_in_every_image_leaves_no_reinforce_gradient():
    captioner, loss = tiny(expectation_prob=1.0), HardLoss().double()
    terms = loss(captioner, REGIONS, torch.tensor([0]), CAPTION).terms
    assert gradient(terms["likelihood"], captioner).norm() > 0
    assert not terms["reinforce"].any()


def scores_of(captioner: Captioner) -> list[Tensor]:
    """The score's outputs of each step (R, 1, 1, L), kept with their gradients."""
    kept: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    captioner.attention.score.register_forward_hook(keep)
    return kept


@pytest.mark.parametrize("released", [False, True])
def test_the_gradient_on_alpha_is_the_rule_written_by_hand(released: bool, monkeypatch: pytest.MonkeyPatch):
    """Released: (cost - b) / 10 * s / alpha + lambda_e (log alpha + 1), summed over the batch, cost a mean over words;
    the paper's: no 10, the cost a sum over words, and a mean over the batch. Then through the softmax."""
    captioner = tiny(estimator="reinforce_arctic" if released else "reinforce")
    monkeypatch.setattr("showattendtell.models.decoder.is_fused", lambda *_: False)
    kept = scores_of(captioner)
    loss = HardLoss(entropy_weight=0.05, reward_weight=1.0).double()
    loss.baseline.fill_(-1.5)
    regions, tokens = torch.randn(2, L, D).double(), torch.tensor([[4, 5, EOS], [5, EOS, PAD]])
    result = loss(captioner, regions, torch.tensor([0, 1]), tokens)
    (result.terms["reinforce"] + result.terms["entropy"]).backward()

    cost = negative_log_likelihood(result.outputs, tokens).detach()
    lengths = torch.tensor([3, 2])
    factor = (cost / lengths + -1.5) / 10 if released else (cost + -1.5) / 2
    entropy_weight = 0.05 if released else 0.05 / 2
    for step, scores in enumerate(kept):
        for row in range(2):
            alpha = result.outputs.weights[row, step].detach()
            chosen = torch.nn.functional.one_hot(result.outputs.sample.locations[row, step, 0], L)
            on_alpha = factor[row] * chosen / alpha + entropy_weight * (alpha.log() + 1)
            on_scores = (
                alpha * (on_alpha - (alpha * on_alpha).sum()) if step < lengths[row] else torch.zeros_like(alpha)
            )
            torch.testing.assert_close(scores.grad[row].flatten(), on_scores)


def test_padding_changes_nothing():
    for estimator in ("reinforce", "reinforce_arctic"):
        results = []
        for tokens in (CAPTION[:, :3], torch.tensor([[4, 5, EOS, PAD]])):
            captioner = tiny(estimator=estimator, inverse_temperature=1000.0)  # every draw is the likeliest
            loss = HardLoss().double()(captioner, REGIONS, torch.tensor([0]), tokens)
            results.append(gradient(total(loss.terms), captioner))
        torch.testing.assert_close(*results)


def test_the_penalty_moves_attention_unless_it_is_only_reported():
    captioner, image_index = tiny(), torch.tensor([0])
    moved = HardLoss(doubly_stochastic_weight=0.5).double()(captioner, REGIONS, image_index, CAPTION)
    reported = HardLoss(doubly_stochastic_weight=0.5, penalty_gradient=False).double()(
        captioner, REGIONS, image_index, CAPTION
    )
    assert gradient(moved.terms["doubly_stochastic"], captioner).norm() > 0
    assert not reported.terms["doubly_stochastic"].requires_grad
    assert reported.metrics["doubly_stochastic"] > 0
