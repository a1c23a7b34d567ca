"""All steps at once against the equations one by one, and against words one at a time."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from small_models import KINDS, D, small_captioner
from torch import Tensor

from showattendtell.losses.caption import SoftLoss, doubly_stochastic_penalty, total
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner, IncrementalDecoder
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.scores import AdditiveScore
from showattendtell.text.vocabulary import EOS, PAD, START


@pytest.fixture
def captioner() -> Captioner:
    torch.manual_seed(0)
    attention = SoftAttention(region_dim=5, hidden_dim=4, score=partial(AdditiveScore, width=3))
    return Captioner(attention, LSTMDecoder(9, 5, embedding_dim=3, hidden_dim=4)).double().eval()


REGIONS = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1)).double()
OWNERS = torch.tensor([0, 1, 0])
TOKENS = torch.tensor([[4, 5, 6, EOS], [7, 8, EOS, PAD], [5, EOS, PAD, PAD]])


def written_as_in_the_paper(captioner: Captioner, regions: Tensor, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Logits (T, V) and alpha (T, L) of one caption of one image (L, D), each equation at its step, nothing hoisted."""
    attention, decoder = captioner.attention, captioner.decoder
    mean = regions.mean(dim=0)
    hidden, cell = decoder.first_state.hidden(mean), decoder.first_state.cell(mean)
    logits, alphas = [], []
    for word in [START, *tokens[:-1]]:
        query = attention.score.query(hidden)
        energy = torch.stack([attention.score.score(torch.tanh(attention.score.key(a) + query)) for a in regions])
        alpha = energy.squeeze(-1).softmax(dim=0)
        beta = torch.sigmoid(attention.gate(hidden))
        context = beta * sum(weight * a for weight, a in zip(alpha, regions, strict=True))
        embedded = decoder.embedding.weight[word]
        gates = decoder.read_word(embedded) + decoder.hidden_gates(hidden) + decoder.context_gates(context)
        admit, forget, output, candidate = gates.chunk(4)
        cell = forget.sigmoid() * cell + admit.sigmoid() * candidate.tanh()
        hidden = output.sigmoid() * cell.tanh()
        summed = embedded + decoder.hidden_output(hidden) + decoder.context_output(context)
        logits.append(decoder.word_scores(summed))
        alphas.append(alpha)
    return torch.stack(logits), torch.stack(alphas)


def test_all_steps_at_once_give_what_the_equations_give_one_by_one(captioner: Captioner):
    trace = captioner(REGIONS, OWNERS, TOKENS)
    padded = trace.at_steps(trace.logits)
    for row, owner in enumerate(OWNERS):
        length = int((TOKENS[row] != PAD).sum())
        logits, alphas = written_as_in_the_paper(captioner, REGIONS[owner], TOKENS[row, :length].tolist())
        torch.testing.assert_close(padded[row, :length], logits)
        torch.testing.assert_close(trace.weights[row, :length], alphas)


def test_gradients_are_those_of_the_equations_written_literally(captioner: Captioner):
    loss = SoftLoss(doubly_stochastic_weight=0.7)
    total(loss(captioner, REGIONS, OWNERS, TOKENS).terms).backward()
    hoisted = {name: parameter.grad.clone() for name, parameter in captioner.named_parameters()}
    captioner.zero_grad()
    literal = torch.tensor(0.0, dtype=torch.double)
    for row, owner in enumerate(OWNERS):
        length = int((TOKENS[row] != PAD).sum())
        tokens = TOKENS[row : row + 1, :length]
        logits, alphas = written_as_in_the_paper(captioner, REGIONS[owner], tokens[0].tolist())
        nll = F.cross_entropy(logits, tokens[0], reduction="sum")
        penalty = doubly_stochastic_penalty(alphas.unsqueeze(0), tokens != PAD)
        literal = literal + (nll + 0.7 * penalty).sum() / len(OWNERS)
    literal.backward()
    for name, parameter in captioner.named_parameters():
        torch.testing.assert_close(hoisted[name], parameter.grad, msg=name)


def test_annotations_are_projected_once_per_image(captioner: Captioner):
    rows = []
    captioner.attention.score.key.register_forward_hook(lambda layer, inputs, output: rows.append(len(inputs[0])))
    captioner(REGIONS, OWNERS, TOKENS)
    assert rows == [2]


DESCRIBED = torch.tensor([0, 0, 0, 2, 3, 3])
"""Images of which some have more captions than others, and one has none."""

STEMMED = torch.tensor([[4, 5, 6, 7], [4, 5, 6, 8], [4, 5, 8, 2], [3, 2, 8, 5], [4, 4, 4, 4], [7, 4, 4, 4]])
"""Captions of which some begin alike."""


def make_regions() -> Tensor:
    return torch.randn(4, 6, D, generator=torch.Generator().manual_seed(1))


def generate_given(decoder: IncrementalDecoder, image_index: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p (B, T, V), alpha (B, T, L) and beta (B, T), where captions that have said the same so far are one stem."""
    output = []
    heard = torch.cat([torch.full_like(tokens[:, :1], START), tokens], dim=1)
    state, images, before = decoder.initial_state, torch.arange(len(decoder.initial_state.hidden)), image_index
    for step in range(tokens.shape[1]):
        said = torch.cat([image_index.unsqueeze(1), heard[:, : step + 1]], dim=1)
        _, stems = said[:, :-1].unique(dim=0, return_inverse=True)  # in the images' order
        rows = torch.stack([before[stems == stem][0] for stem in range(int(stems.max()) + 1)])
        done = decoder.step(state.select(rows), images[rows], stems, heard[:, step])
        log_p = done.scores - done.normalizers.unsqueeze(1)
        output.append((log_p, done.weights, done.gate))
        state, images, before = done.state, images[rows][stems], torch.arange(len(image_index))
    log_p, weights, gates = (torch.stack(part, dim=1) for part in zip(*output, strict=True))
    return log_p, weights, gates


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("attention", "decoder"), [*KINDS, ("soft", "lstm of words alone")])
@torch.no_grad()
def test_words_one_at_a_time_have_the_probabilities_of_all_at_once(attention: str, decoder: str, dtype: torch.dtype):
    captioner, regions = small_captioner(attention, decoder).to(dtype), make_regions().to(dtype)
    trace = captioner(regions, DESCRIBED, STEMMED)
    log_p, weights, gates = generate_given(captioner.decoder.incremental(captioner)(regions), DESCRIBED, STEMMED)
    torch.testing.assert_close(log_p, trace.at_steps(trace.logits).log_softmax(dim=2))
    torch.testing.assert_close(weights, trace.weights)
    torch.testing.assert_close(gates, trace.gates)
