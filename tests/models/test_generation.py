"""Words one at a time against all at once, however many captions share an image or a look."""

import pytest
import torch
from small_models import KINDS, D, small_captioner
from torch import Tensor

from showattendtell.models.captioner import IncrementalDecoder
from showattendtell.text.vocabulary import START

OWNERS = torch.tensor([0, 0, 0, 2, 3, 3])
"""Images of which some have more captions than others, and one has none."""

TOKENS = torch.tensor([[4, 5, 6, 7], [4, 5, 6, 8], [4, 5, 8, 2], [3, 2, 8, 5], [4, 4, 4, 4], [7, 4, 4, 4]])
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
    trace = captioner(regions, OWNERS, TOKENS)
    log_p, weights, gates = generate_given(captioner.decoder.incremental(captioner)(regions), OWNERS, TOKENS)
    torch.testing.assert_close(log_p, trace.at_steps(trace.logits).log_softmax(dim=2))
    torch.testing.assert_close(weights, trace.weights)
    torch.testing.assert_close(gates, trace.gates)


@torch.no_grad()
def test_finished_images_are_left_out_of_the_attention_cache():
    captioner, regions = small_captioner("dot"), make_regions()
    seen = []
    captioner.attention.register_forward_hook(lambda layer, inputs, output: seen.append(len(inputs[0].regions)))
    decoder = captioner.decoder.incremental(captioner)(regions)
    state = decoder.initial_state
    for images in ([0, 1, 2, 3], [0, 2, 3], [2, 3], [3]):
        rows = torch.tensor(images)
        step = decoder.step(state.select(rows), rows, torch.arange(len(rows)), torch.full_like(rows, START))
        expected = captioner(regions[rows], torch.arange(len(rows)), torch.full((len(rows), 1), 4))
        torch.testing.assert_close(step.weights, expected.weights[:, 0])
    assert seen[::2] == [4, 4, 2, 1]


@pytest.mark.parametrize("attention", ["soft", "dot"])
@torch.no_grad()
def test_under_an_autocast_products_are_in_its_precision_and_all_else_in_single(attention: str):
    captioner, regions = small_captioner(attention), make_regions()
    for parameter in captioner.parameters():
        parameter /= 2
    exact = generate_given(captioner.decoder.incremental(captioner)(regions), OWNERS, TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        rough = generate_given(captioner.decoder.incremental(captioner)(regions), OWNERS, TOKENS)
    gated = captioner.attention.gate is not None  # otherwise beta is 1
    for ours, theirs in list(zip(rough, exact, strict=True))[: 3 if gated else 2]:
        assert 0 < (ours.float() - theirs).abs().max() < 0.5
    assert rough[0].dtype == torch.float32
