"""Words one at a time against all at once, however many captions share an image or a look."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from extension_cases import cases
from torch import Tensor, nn

from showattendtell.data.vocabulary import START
from showattendtell.models.attention import AdaptiveAttention, MeanAttention, SoftAttention
from showattendtell.models.baselines import LogBilinearDecoder, NICDecoder
from showattendtell.models.captioner import (
    Captioner,
    IncrementalDecoder,
)
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.scores import AdditiveScore, DotScore, MultiheadScore

SCORE = partial(AdditiveScore, width=3)
ATTENTIONS: dict[str, Callable[[], nn.Module]] = {
    "soft": lambda: SoftAttention(5, 4, SCORE),
    "soft, a gate for each channel": lambda: SoftAttention(5, 4, SCORE, gate="channel"),
    "soft, no gate": lambda: SoftAttention(5, 4, SCORE, gate="none"),
    "dot": lambda: SoftAttention(5, 4, DotScore),
    "multihead": lambda: SoftAttention(5, 4, partial(MultiheadScore, width=4, num_heads=2)),
    "hard": lambda: HardAttention(5, 4, SCORE, inference_mode="argmax"),
    "adaptive": lambda: AdaptiveAttention(5, 4, SCORE),
}
"""Those that draw nothing."""

DECODERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: LSTMDecoder(9, 5, embedding_dim=3, hidden_dim=4),
    "lstm as released": lambda: LSTMDecoder(
        9, 5, 3, 4, output=["hidden", "context"], output_tanh=True, first_input="zero", start="shared"
    ),
    "lstm that says what it heard": lambda: LSTMDecoder(9, 5, 3, 4, output=["word"], tie_embeddings=True),
    "nic": lambda: NICDecoder(9, 5, embedding_dim=3, hidden_dim=4),
    "log-bilinear": lambda: LogBilinearDecoder(9, 5, embedding_dim=3, hidden_dim=4),
}
MODELS = [("soft", decoder) for decoder in ("lstm", "lstm as released", "lstm that says what it heard")]
MODELS += [(attention, "lstm") for attention in ATTENTIONS if attention != "soft"]
MODELS += cases("GENERATED_PAIRS")
ATTENTIONS |= cases("GENERATED_ATTENTIONS")
DECODERS |= cases("GENERATED_DECODERS")
MODELS += [("mean", decoder) for decoder in ("lstm", "nic", "log-bilinear")]

OWNERS = torch.tensor([0, 0, 0, 2, 3, 3])
"""Images of which some have more captions than others, and one has none."""

TOKENS = torch.tensor([[4, 5, 6, 7], [4, 5, 6, 8], [4, 5, 8, 2], [3, 2, 8, 5], [4, 4, 4, 4], [7, 4, 4, 4]])
"""Captions of which some begin alike."""


def make_captioner(attention: str = "soft", decoder: str = "lstm") -> Captioner:
    torch.manual_seed(0)
    looks = MeanAttention(5, 4) if attention == "mean" else ATTENTIONS[attention]()
    captioner = Captioner(looks, DECODERS[decoder]()).eval()
    for parameter in captioner.parameters():
        nn.init.normal_(parameter)
    return captioner


def make_regions() -> Tensor:
    return torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1))


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
@pytest.mark.parametrize(("attention", "decoder"), MODELS)
@torch.no_grad()
def test_words_one_at_a_time_have_the_probabilities_of_all_at_once(attention: str, decoder: str, dtype: torch.dtype):
    captioner, regions = make_captioner(attention, decoder).to(dtype), make_regions().to(dtype)
    trace = captioner(regions, OWNERS, TOKENS)
    log_p, weights, gates = generate_given(captioner.decoder.incremental(captioner)(regions), OWNERS, TOKENS)
    torch.testing.assert_close(log_p, trace.at_steps(trace.logits).log_softmax(dim=2))
    torch.testing.assert_close(weights, trace.weights)
    torch.testing.assert_close(gates, trace.gates)


@torch.no_grad()
def test_finished_images_are_left_out_of_the_attention_cache():
    captioner, regions = make_captioner("dot"), make_regions()
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


@pytest.mark.parametrize("attention", sorted(ATTENTIONS.keys() & {"soft", "dot", "marginal", "marginal, dot"}))
@torch.no_grad()
def test_under_an_autocast_products_are_in_its_precision_and_all_else_in_single(attention: str):
    captioner, regions = make_captioner(attention), make_regions()
    exact = generate_given(captioner.decoder.incremental(captioner)(regions), OWNERS, TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        rough = generate_given(captioner.decoder.incremental(captioner)(regions), OWNERS, TOKENS)
    gated = captioner.attention.gate is not None  # otherwise beta is 1
    for ours, theirs in list(zip(rough, exact, strict=True))[: 3 if gated else 2]:
        assert 0 < (ours.float() - theirs).abs().max() < 0.3
    assert rough[0].dtype == torch.float32
