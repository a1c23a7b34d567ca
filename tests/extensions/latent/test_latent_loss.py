"""Marginal and variational attention against sums over every sequence of regions, written with plain loops."""

import itertools
import math
from collections.abc import Sequence
from functools import cache, partial

import pytest
import torch
from estimators import assert_unbiased, gradient
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_after
from torch import Tensor

from showattendtell.data.vocabulary import EOS, PAD, START
from showattendtell.errors import UserError
from showattendtell.extensions.latent import mixture
from showattendtell.extensions.latent.attention import MarginalAttention, VariationalAttention
from showattendtell.extensions.latent.loss import VariationalLoss
from showattendtell.extensions.latent.mixture import MixtureFeatures, region_table, table_log_probs
from showattendtell.losses.caption import SoftLoss, negative_log_likelihood, total
from showattendtell.losses.self_critical import SUPPRESSED
from showattendtell.models.attention import SoftAttention
from showattendtell.models.baselines import LogBilinearDecoder
from showattendtell.models.captioner import Captioner, shift_right
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.scores import AdditiveScore, MultiheadScore

L, T, D, N, V = 3, 3, 4, 3, 6
REGIONS = torch.randn(2, L, D, generator=torch.Generator().manual_seed(0)).double()
CAPTION = torch.tensor([[4, 5, EOS]])
ONE = torch.tensor([0])
SCORE = partial(AdditiveScore, width=3)


def tiny(
    attention: type[MarginalAttention] = MarginalAttention,
    bilinear: bool = False,
    output: Sequence[str] = ("word", "hidden", "context"),
    **options: object,
) -> Captioner:
    """Random weights, large enough for maps and words that are far from uniform."""
    torch.manual_seed(1)
    sizes = {"embedding_dim": 3, "hidden_dim": N, "dropout": 0.0}
    decoder = LogBilinearDecoder(V, D, **sizes) if bilinear else LSTMDecoder(V, D, **sizes, output=output)
    captioner = Captioner(attention(D, N, score=SCORE, **options), decoder)
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter)
    return captioner.double().train()


def enumerated(captioner: Captioner) -> Tensor:
    """log sum_z p(z) p(y|z) over all L^T sequences of regions, one sequence after the other."""
    attention, decoder = captioner.attention, captioner.decoder
    sequences = []
    for path in itertools.product(range(L), repeat=T):
        cache, state = captioner.init_state(REGIONS[:1])
        log_p = torch.tensor(0.0).double()
        for region, read, word in zip(path, [START, *CAPTION[0, :-1].tolist()], CAPTION[0].tolist(), strict=True):
            attended = attention(cache, state)
            embedded, gates = decoder.embed_words(torch.tensor([read]))
            z = REGIONS[:1, region]
            follows = decoder.step(gates, attended.context, state)
            is_bilinear = isinstance(decoder, LogBilinearDecoder)  # its output has the region in the state
            hidden = decoder.step(gates, z, state).hidden if is_bilinear else follows.hidden
            scores = decoder.word_scores(decoder.output_features(embedded, hidden, z))
            log_p = log_p + attended.weights[0, region].log() + scores.log_softmax(dim=1)[0, word]
            state = follows
        sequences.append(log_p)
    return torch.stack(sequences).logsumexp(dim=0)


EXACT = {
    "lstm": {},
    "context alone": {"output": ["context"]},
    "log-bilinear": {"bilinear": True},
}


@pytest.mark.parametrize("options", EXACT.values(), ids=EXACT)
def test_log_p_is_the_sum_over_every_sequence_of_regions(options: dict[str, object]):
    captioner = tiny(**options)
    trace = captioner(REGIONS, ONE, CAPTION)
    found, expected = -negative_log_likelihood(trace, CAPTION), enumerated(captioner)
    torch.testing.assert_close(found, expected.unsqueeze(0), atol=1e-9, rtol=0)
    parameters = list(captioner.parameters())
    gradients = [torch.autograd.grad(x, parameters, allow_unused=True) for x in (found.sum(), expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


def batch(captioner: Captioner) -> tuple[MixtureFeatures, Tensor]:
    """The words of captions of two images, and their targets."""
    tokens = torch.tensor([[4, 5, EOS], [5, EOS, PAD], [1, 1, EOS]])
    trace = captioner(REGIONS, torch.tensor([1, 0, 1]), tokens)
    return trace.output_features, tokens.flatten()[trace.indices]


def log_p_of(features: MixtureFeatures) -> Tensor:
    """log p of all words (N, V) from all L x V scores of each."""
    inputs = features.values.unsqueeze(1) + features.parts[features.image_index]
    by_region = (inputs @ features.matrix.T + features.bias).log_softmax(dim=2)
    log_p = (by_region + features.log_weights.unsqueeze(2)).logsumexp(dim=1)
    if features.suppressed:
        log_p = log_p.index_fill(1, torch.tensor(features.suppressed), -math.inf).log_softmax(dim=1)
    return log_p


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("bilinear", [False, True])
def test_products_of_exponentials_give_the_cross_entropy_of_all_scores(smoothing: float, bilinear: bool):
    captioner = tiny(bilinear=bilinear)
    features, targets = batch(captioner)
    log_p = log_p_of(features)
    nll = -log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    cost = features.cross_entropy(targets, smoothing)
    torch.testing.assert_close(features.logits(), log_p.detach())
    torch.testing.assert_close(cost.nll, nll.detach())
    losses = [cost.loss, torch.lerp(nll, -log_p.mean(dim=1), smoothing)]
    torch.testing.assert_close(*losses)
    weights = torch.arange(1.0, len(targets) + 1).double()
    torch.testing.assert_close(*(gradient((loss * weights).sum(), captioner) for loss in losses))


def test_excluded_words_have_no_probability():
    captioner = tiny()
    features, targets = batch(captioner)
    given = features.without(SUPPRESSED)
    log_p = log_p_of(given)
    torch.testing.assert_close(given.logits(), log_p.detach())
    words = targets != START
    losses = [given.cross_entropy(targets).loss[words], -log_p.gather(1, targets.unsqueeze(1)).squeeze(1)[words]]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(gradient(loss.sum(), captioner) for loss in losses))


def test_words_can_be_selected():
    features, targets = batch(tiny())
    some = torch.arange(len(targets)) % 2 == 1
    torch.testing.assert_close(
        features.select(some).cross_entropy(targets[some]).nll, features.cross_entropy(targets).nll[some]
    )


@pytest.mark.parametrize("together", [1, 30])
def test_images_in_pieces_are_the_same(together: int, monkeypatch: pytest.MonkeyPatch):
    features, targets = batch(tiny())
    expected = features.cross_entropy(targets, 0.1)
    monkeypatch.setattr(mixture, "MAX_SCORES", {"cpu": together})
    torch.testing.assert_close(features.cross_entropy(targets, 0.1), expected)


@pytest.mark.parametrize("distance", [30.0, 100.0])
def test_scores_too_far_apart_for_exponentials_give_a_lower_bound(distance: float):
    """The likeliest word without the region is the least likely of the region, by e^60 or e^200."""
    matrix, bias = torch.tensor([[1.0], [-1.0]]), torch.zeros(2)
    values, parts = torch.tensor([[distance]]), torch.tensor([[[-distance - 1.0], [-distance - 1.5]]])
    log_weights = torch.tensor([[0.25, 0.75]]).log()
    features = MixtureFeatures(values, matrix, bias, parts, ONE, log_weights)
    expected = log_p_of(features)[0]
    table = table_log_probs(region_table(parts, matrix.T), values @ matrix.T, log_weights)[0]
    trained = torch.cat([-features.cross_entropy(torch.tensor([word])).nll for word in range(2)])
    for found in (table, trained):
        assert (found <= expected + 1e-4).all()
        if distance < 34:  # e^-68 is above the smallest normalizer
            torch.testing.assert_close(found, expected)


def test_in_float32_nothing_is_lost():
    features, targets = batch(tiny())
    single = MixtureFeatures(
        *(part.float() if part is not None and part.is_floating_point() else part for part in features[:6])
    )
    expected = features.cross_entropy(targets).nll
    torch.testing.assert_close(single.cross_entropy(targets).nll.double(), expected, rtol=1e-5, atol=1e-5)


def test_one_region_is_soft_attention():
    torch.manual_seed(0)
    captioner = tiny()
    soft = Captioner(SoftAttention(D, N, score=SCORE, gate="none").double(), captioner.decoder)
    soft.attention.load_state_dict(captioner.attention.state_dict())
    one = REGIONS[:1, :1]
    found, expected = (SoftLoss().double()(model, one, ONE, CAPTION).nll for model in (captioner, soft))
    torch.testing.assert_close(found, expected)


# variational attention


def variational(**options: object) -> Captioner:
    """With small weights of the inference network: a region with q close to 0 is never sampled."""
    captioner = tiny(VariationalAttention, width=5, **options)
    for parameter in captioner.posterior.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return captioner


def posterior_of(captioner: Captioner) -> Tensor:
    """log p(z_t | y) of every word, (T, L), by Bayes' rule."""
    trace = captioner(REGIONS, ONE, CAPTION)
    targets = CAPTION.flatten()[trace.indices]
    log_p, _ = trace.output_features.region_log_probs(targets.unsqueeze(1))
    return (trace.output_features.log_weights + log_p.squeeze(2)).log_softmax(dim=1)


def with_q(captioner: Captioner, log_q: Tensor) -> Captioner:
    captioner.posterior.forward = lambda *_: log_q  # type: ignore[union-attr, method-assign]
    return captioner


@cache
def exact() -> tuple[Tensor, Tensor]:
    """log p of the caption and log p(z | y), for which q does not matter."""
    captioner = variational(estimator="exact")
    return enumerated(captioner).detach(), posterior_of(captioner).detach()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-60, 60), min_size=T * L, max_size=T * L))
def test_the_bound_is_never_above_log_p(scores: list[int]):
    captioner, (log_p, posterior) = variational(estimator="exact"), exact()
    log_q = (torch.tensor(scores).double() / 10).view(T, L).log_softmax(dim=1)
    output = VariationalLoss().double()(with_q(captioner, log_q), REGIONS, ONE, CAPTION)
    assert -output.nll <= log_p + 1e-12
    assert output.terms["kl"] >= 0
    # log p - bound = KL(q || posterior)
    torch.testing.assert_close(log_p + output.nll, (log_q.exp() * (log_q - posterior)).sum())


def test_the_bound_is_log_p_if_q_is_the_posterior():
    captioner = variational(estimator="exact")
    log_q = posterior_of(captioner).detach()
    output = VariationalLoss().double()(with_q(captioner, log_q), REGIONS, ONE, CAPTION)
    torch.testing.assert_close(-output.nll, enumerated(captioner))


@pytest.mark.slow
def test_the_inference_network_learns_the_posterior():
    captioner = variational(estimator="exact")
    optimizer = torch.optim.Adam(captioner.posterior.parameters(), lr=0.05)
    loss, gaps = VariationalLoss().double(), []
    for _ in range(300):
        optimizer.zero_grad()
        output = loss(captioner, REGIONS, ONE, CAPTION)
        gaps.append((enumerated(captioner) + output.nll).item())
        total(output.terms).backward()
        optimizer.step()
    assert min(gaps) >= 0
    assert gaps[-1] < 0.03 * gaps[0]


def exact_gradient(**options: object) -> Tensor:
    """Of minus the bound, with every sequence of regions under q enumerated."""
    captioner = variational(**options)
    trace = captioner(REGIONS, ONE, CAPTION)
    targets, log_q = CAPTION.flatten()[trace.indices], trace.output_features.log_q
    log_p, _ = trace.output_features.region_log_probs(targets.unsqueeze(1))
    value = torch.tensor(0.0).double()
    for path in itertools.product(range(L), repeat=T):
        q = torch.stack([log_q[step, region] for step, region in enumerate(path)]).sum().exp()
        ratio = sum(
            log_p[step, region, 0] + trace.output_features.log_weights[step, region] - log_q[step, region]
            for step, region in enumerate(path)
        )
        value = value - q * ratio
    return gradient(value, captioner)


UNBIASED = {
    "exact": {"estimator": "exact"},
    "reinforce": {"estimator": "reinforce"},
    "reinforce, three samples": {"estimator": "reinforce", "num_samples": 3},
    "rloo": {"estimator": "rloo", "num_samples": 4},
}


@pytest.mark.parametrize("baseline", slow_after(1, [0.0, -2.0]))
@pytest.mark.parametrize("options", UNBIASED.values(), ids=UNBIASED)
def test_the_mean_of_an_unbiased_estimator_is_the_enumerated_gradient(options: dict[str, object], baseline: float):
    captioner, copies, batches = variational(**options), 200, 30
    expected = exact_gradient()
    loss = VariationalLoss(baseline_decay=1.0).double()
    loss.baseline.fill_(baseline)
    rows, tokens = torch.zeros(copies, dtype=torch.long), CAPTION.repeat(copies, 1)
    assert_unbiased(
        lambda: total(loss(captioner, REGIONS, rows, tokens).terms), captioner, expected, batches, sigmas=4.5, noise=0.2
    )


def test_the_relaxed_objective_has_the_gradient_of_its_maps(monkeypatch: pytest.MonkeyPatch):
    """With given noise m = softmax((log q + g) / tau), and the word is scored at sum_i m_i a_i."""
    captioner = variational(estimator="gumbel", gumbel_tau=0.7)
    noise = torch.randn(T, L).double()
    monkeypatch.setattr("torch.nn.functional.gumbel_softmax", lambda log_q, tau: ((log_q + noise) / tau).softmax(dim=1))
    loss = VariationalLoss(kl_weight=0.0).double()
    found = gradient(loss(captioner, REGIONS, ONE, CAPTION).terms["likelihood"], captioner)

    cache, state = captioner.init_state(REGIONS[:1])
    decoder, value = captioner.decoder, torch.tensor(0.0).double()
    for step, (read, word) in enumerate(zip(shift_right(CAPTION)[0], CAPTION[0], strict=True)):
        attended = captioner.attention(cache, state)
        embedded, gates = decoder.embed_words(read.unsqueeze(0))
        state = decoder.step(gates, attended.context, state)
        log_q = captioner.posterior(
            state.hidden.detach(),
            decoder.word_scores.weight[word].detach().unsqueeze(0),
            REGIONS[:1],
            MixtureFeatures(*[torch.empty(0)] * 3, REGIONS[:1], ONE, attended.weights.log()),
        )
        relaxed = ((log_q + noise[step]) / 0.7).softmax(dim=1) @ REGIONS[0]
        value = value - decoder.score_words(embedded, state.hidden, relaxed).log_softmax(dim=1)[0, word]
    torch.testing.assert_close(found, gradient(value, captioner))


def test_samples_of_q_do_not_move_alpha_or_the_state():
    captioner = variational()
    loss = VariationalLoss().double()
    terms = loss(captioner, REGIONS, ONE, CAPTION).terms
    own = {id(parameter) for parameter in captioner.posterior.parameters()}
    others = [parameter for parameter in captioner.parameters() if id(parameter) not in own]
    assert all(part is None for part in torch.autograd.grad(terms["reinforce"], others, allow_unused=True))


def test_the_baseline_follows_the_mean_reward_of_a_word():
    captioner, loss = variational(), VariationalLoss(baseline_decay=0.9).double()
    expected = 0.0
    for _ in range(3):
        output = loss(captioner, REGIONS, ONE, CAPTION)
        reward = -(output.nll - output.metrics["kl"]).item() / T
        expected = 0.9 * expected + 0.1 * reward
        assert loss.baseline.item() == pytest.approx(expected)
    loss.eval()(captioner, REGIONS, ONE, CAPTION)
    assert loss.baseline.item() == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["exact", "gumbel"])
def test_padding_changes_nothing(estimator: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.nn.functional.gumbel_softmax", lambda log_q, tau: log_q.exp())
    results = []
    for tokens in (CAPTION, torch.tensor([[4, 5, EOS, PAD]])):
        captioner = variational(estimator=estimator)
        terms = VariationalLoss(label_smoothing=0.1).double()(captioner, REGIONS, ONE, tokens).terms
        results.append(gradient(total(terms), captioner))
    torch.testing.assert_close(*results)


def test_settings_that_do_not_go_together_are_reported():
    with pytest.raises(ValueError, match="needs a score with one head, got num_heads=3"):
        MarginalAttention(D, N, score=partial(MultiheadScore, width=6, num_heads=3))
    with pytest.raises(ValueError, match="samples must be 2 or more, got 1"):
        VariationalAttention(D, N, estimator="rloo")
    for options in ({"output": ["word", "hidden"]}, {"output_tanh": True}):
        with pytest.raises(ValueError, match="add context to decoder.output, and leave out decoder.output_tanh"):
            Captioner(MarginalAttention(D, N), LSTMDecoder(V, D, hidden_dim=N, **options))
    with pytest.raises(UserError, match="MarginalAttention cannot be trained with VariationalLoss"):
        VariationalLoss()(tiny(), REGIONS, ONE, CAPTION)
