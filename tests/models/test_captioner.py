from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.losses.caption import SoftLoss, doubly_stochastic_penalty, total
from showattendtell.models.attention import SoftAttention
from showattendtell.models.baselines import NICDecoder
from showattendtell.models.captioner import Captioner
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


def test_a_decoder_that_never_looks_again_refuses_an_attention():
    with pytest.raises(ValueError, match="NICDecoder sees the image once and has no use for SoftAttention"):
        Captioner(SoftAttention(5, 4), NICDecoder(9, 5, hidden_dim=4))
