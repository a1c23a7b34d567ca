"""Regions that pad an image have no weight anywhere: everything is as without them."""

import pytest
import torch
import torch.nn.functional as F
from small_models import KINDS, VOCABULARY, D, small_captioner
from torch import Tensor

from showattendtell.data.vocabulary import EOS, PAD
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.losses.caption import SoftLoss, caption_cross_entropy, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.metrics.attention import attention_statistics
from showattendtell.models.captioner import Captioner
from showattendtell.models.interfaces import is_fused

OWNERS = torch.tensor([0, 1, 0, 2])
TOKENS = torch.tensor([[4, 5, 6, EOS], [7, 8, EOS, PAD], [5, EOS, PAD, PAD], [9, 6, 7, EOS]])
COUNTS = [4, 2, 5]


def alone() -> list[Tensor]:
    """The regions (n, D) of three images, which have different numbers of them."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, D, generator=generator) for count in COUNTS]


def padded(images: list[Tensor], length: int) -> Tensor:
    """The images (I, L, D), with rows of zeros at the end."""
    return torch.stack([torch.cat([image, torch.zeros(length - len(image), D)]) for image in images])


def with_padding(attention: str, decoder: str, dtype: torch.dtype = torch.float64) -> Captioner:
    captioner = small_captioner(attention, decoder).to(dtype)
    captioner.padded = True
    return captioner


@pytest.mark.parametrize(("attention", "decoder"), KINDS)
def test_images_of_different_lengths_get_what_each_gets_alone(attention: str, decoder: str):
    captioner, images = with_padding(attention, decoder), [image.double() for image in alone()]
    together = captioner(padded(images, 9).double(), OWNERS, TOKENS)
    log_p = -caption_cross_entropy(together, TOKENS).nll
    captioner.padded = False
    for row, owner in enumerate(OWNERS.tolist()):
        [length] = (TOKENS[row] != PAD).sum().view(1).tolist()
        tokens = TOKENS[row : row + 1, :length]
        own = captioner(images[owner].unsqueeze(0), torch.zeros(1, dtype=torch.long), tokens)
        torch.testing.assert_close(log_p[row], -caption_cross_entropy(own, tokens).nll[0])
        torch.testing.assert_close(together.weights[row, :length, : COUNTS[owner]], own.weights[0])
        torch.testing.assert_close(together.gates[row, :length], own.gates[0])
        assert not together.weights[row, :, COUNTS[owner] :].any()


@pytest.mark.parametrize(("attention", "decoder"), KINDS)
def test_more_padding_changes_neither_the_loss_nor_its_gradients(attention: str, decoder: str):
    found = []
    for length in (5, 12):
        captioner, images = with_padding(attention, decoder), [image.double().requires_grad_() for image in alone()]
        regions = torch.stack([F.pad(image, (0, 0, 0, length - len(image))) for image in images])
        torch.manual_seed(1)
        loss = SoftLoss(doubly_stochastic_weight=0.7, label_smoothing=0.1, penalty_reduction="locations")
        terms = total(loss(captioner, regions, OWNERS, TOKENS).terms)
        weights = [parameter for parameter in captioner.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(terms, [*images, *weights], allow_unused=True)
        found.append([terms.detach(), *(gradient for gradient in gradients if gradient is not None)])
    for few, many in zip(*found, strict=True):
        torch.testing.assert_close(few, many)


@pytest.mark.parametrize("estimator", ["reinforce", "gumbel_st"])
def test_hard_attention_never_samples_padding(estimator: str):
    captioner = with_padding("hard, argmax", "lstm").train()
    captioner.attention.inference_mode, captioner.attention.estimator = "sample", estimator
    captioner.attention.expectation_prob = 0.0
    torch.manual_seed(0)
    output = HardLoss()(captioner, padded(alone(), 9).double(), OWNERS.repeat(50), TOKENS.repeat(50, 1))
    assert total(output.terms).isfinite()
    torch.manual_seed(0)
    trace = captioner(padded(alone(), 9).double(), OWNERS.repeat(50), TOKENS.repeat(50, 1))
    counts = torch.tensor(COUNTS)[OWNERS.repeat(50)]
    assert (trace.sample.locations < counts[:, None, None]).all()
    assert trace.sample.entropy.isfinite().all()
    assert trace.sample.log_prob.isfinite().all()


@pytest.mark.parametrize(("attention", "decoder"), KINDS)
def test_beam_search_writes_what_it_writes_without_padding(attention: str, decoder: str):
    captioner, images = with_padding(attention, decoder, torch.float32), alone()
    search = BeamSearch(beam_size=3, max_length=6)
    with torch.no_grad():
        together = search.generate(Ensemble([captioner]), [padded(images, 9)], VOCABULARY)
        captioner.padded = False
        for image, captions in zip(images, together, strict=True):
            [own] = search.generate(Ensemble([captioner]), [image.unsqueeze(0)], VOCABULARY)
            assert [caption.tokens for caption in captions] == [caption.tokens for caption in own]
            torch.testing.assert_close(captions[0].log_probs, own[0].log_probs)
            torch.testing.assert_close(captions[0].attention[:, : len(image)], own[0].attention)
            assert not captions[0].attention[:, len(image) :].any()


def test_the_fused_recurrence_gives_what_the_plain_loop_gives(monkeypatch: pytest.MonkeyPatch):
    found = []
    for fused in (True, False):
        monkeypatch.setattr("showattendtell.models.decoder.is_fused", lambda *_, fused=fused: fused)
        captioner = with_padding("soft", "lstm")
        regions = padded(alone(), 7).double().requires_grad_()
        trace = captioner(regions, OWNERS, TOKENS)
        loss = caption_cross_entropy(trace, TOKENS).loss.sum() + trace.weights.square().sum()
        found.append(torch.autograd.grad(loss, [regions, *captioner.parameters()]))
    assert is_fused(captioner.attention, captioner.decoder)
    for fused, plain in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain)


def test_statistics_of_maps_count_no_padding():
    captioner = with_padding("soft", "lstm")
    few, many = (
        attention_statistics(captioner(padded(alone(), length).double(), OWNERS, TOKENS), TOKENS) for length in (5, 30)
    )
    for name in few:
        torch.testing.assert_close(few[name][0], many[name][0])


def test_rows_of_zeros_are_regions_unless_a_model_says_otherwise():
    captioner = small_captioner().double()
    assert captioner(padded(alone(), 9).double(), OWNERS, TOKENS).weights[1, 0, 2:].all()
