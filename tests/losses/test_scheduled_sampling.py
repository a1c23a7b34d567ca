"""Scheduled sampling against the captions that the model writes itself, and against the captions as they are."""

import pytest
import torch
from torch import Tensor, nn

from showattendtell.data.vocabulary import EOS, PAD, SPECIAL, START, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.losses.caption import SoftLoss, negative_log_likelihood
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder

VOCABULARY = Vocabulary([*SPECIAL, *"abcdefghij"])
T = 6
REGIONS = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).double()
OWNERS = torch.tensor([2, 0, 1, 2])
TOKENS = torch.tensor([[5, 6, 7, 8, 9, EOS], [6, 5, EOS, PAD, PAD, PAD], [9, 9, 9, 9, EOS, PAD], [4, 5, 6, 4, 5, EOS]])


def captioner_of(sharpness: float = 1.0) -> Captioner:
    """In training, with dropout; the sharper, the surer of its words it is."""
    torch.manual_seed(1)
    captioner = Captioner(SoftAttention(5, 4), LSTMDecoder(len(VOCABULARY), 5, embedding_dim=3, hidden_dim=4)).double()
    for parameter in captioner.parameters():
        nn.init.normal_(parameter)
    with torch.no_grad():
        captioner.decoder.word_scores.weight *= sharpness
        captioner.decoder.word_scores.bias *= sharpness
    return captioner.train()


def mixed(captioner: Captioner, probability: float, tokens: Tensor = TOKENS, owners: Tensor = OWNERS) -> Tensor | None:
    loss = SoftLoss(scheduled_sampling=probability)
    loss.progress = 1.0
    return loss.mix_words(captioner, REGIONS, owners, tokens)


def test_with_probability_1_the_model_reads_what_it_says():
    """One that is all but sure of every word, against its greedy captions."""
    captioner = captioner_of(sharpness=1e4)
    read = mixed(captioner, 1.0)
    greedy = BeamSearch(max_length=T).generate(Ensemble([captioner.eval()]), [REGIONS], VOCABULARY)
    for row, owner in enumerate(OWNERS.tolist()):
        [caption] = greedy[owner]
        said = caption.tokens[: int((TOKENS[row] != PAD).sum()) - 1]
        assert read[row, 0] == START
        assert read[row, 1 : len(said) + 1].tolist() == said
    assert ((read == PAD) == (TOKENS == PAD)).all()


def test_with_probability_0_nothing_is_mixed_in_and_nothing_drawn():
    before = torch.get_rng_state()
    captioner = captioner_of()
    drawn = torch.get_rng_state()
    assert mixed(captioner, 0.0) is None
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not torch.equal(before, drawn)


def test_each_word_is_the_models_own_with_the_probability():
    captioner, rare = captioner_of(), 10 + len(SPECIAL) - 1
    tokens = torch.full((4000, 4), rare)
    with torch.no_grad():
        captioner.decoder.word_scores.bias[rare] = -1e9  # it never says this one itself
    read = mixed(captioner, 0.3, tokens, torch.zeros(4000, dtype=torch.long))
    assert read[:, 0].eq(START).all()
    own = (read[:, 1:] != rare).double().mean(dim=0)
    torch.testing.assert_close(own, torch.full_like(own, 0.3), atol=0.03, rtol=0)  # four standard errors


def test_the_words_that_are_read_are_those_that_the_loss_is_taken_behind():
    captioner = captioner_of().eval()
    read = torch.randint(4, 10, TOKENS.shape, generator=torch.Generator().manual_seed(5))
    found = negative_log_likelihood(captioner(REGIONS, OWNERS, TOKENS, read), TOKENS)
    for row, owner in enumerate(OWNERS.tolist()):
        nll = torch.zeros(())
        cache, state = captioner.init_state(REGIONS[owner : owner + 1])
        for step in range(int((TOKENS[row] != PAD).sum())):
            glimpse, embedded = captioner.attention(cache, state), captioner.decoder.embed(read[row, step : step + 1])
            state = captioner.decoder.step(captioner.decoder.word_gates(embedded), glimpse.context, state)
            scores = captioner.decoder.score_words(embedded, state.hidden, glimpse.context)
            nll = nll - scores.log_softmax(dim=1)[0, TOKENS[row, step]]
        torch.testing.assert_close(found[row], nll.double())


@pytest.mark.parametrize(("progress", "training", "own"), [(0.0, True, 0.0), (0.5, True, 0.2), (0.5, False, 0.0)])
def test_the_probability_rises_with_training_and_is_none_outside_of_it(progress: float, training: bool, own: float):
    loss = SoftLoss(scheduled_sampling=0.4).train(training)
    loss.progress = progress
    assert loss.sampling_prob == pytest.approx(own)
