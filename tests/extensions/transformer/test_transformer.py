"""The transformer decoder against torch's, and its attention maps against products of whole matrices."""

from functools import partial
from typing import Any

import pytest
import torch
from random_models import VOCABULARY, best, ended_captions, random_captioner, random_regions
from random_models import ranked as by_merit
from torch import Tensor, nn

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.errors import UserError
from showattendtell.extensions.transformer.decoder import CrossAttention, TransformerDecoder
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner, shift_right
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.text.vocabulary import EOS, PAD

V, D, N, LAYERS, HEADS = 9, 5, 8, 3, 2
OWNERS = torch.tensor([1, 0, 1, 0])
TOKENS = torch.tensor([[4, 5, 6, EOS], [7, EOS, PAD, PAD], [8, 4, EOS, PAD], [5, 5, 5, EOS]])


def make_captioner(map: Any = "last", seed: int = 0, words: int = V, spread: float = 0.7, **settings: Any) -> Captioner:
    torch.manual_seed(seed)
    decoder = TransformerDecoder(
        words, D, **{"embedding_dim": N, "hidden_dim": N, "num_layers": LAYERS, "num_heads": HEADS} | settings
    )
    captioner = Captioner(CrossAttention(D, N, map), decoder).double().eval()
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, std=spread)
    return captioner


def make_regions() -> Tensor:
    return torch.randn(2, 6, D, generator=torch.Generator().manual_seed(1)).double()


def torch_decoder(decoder: TransformerDecoder) -> nn.TransformerDecoder:
    """torch's decoder with the weights of ours."""
    layer = nn.TransformerDecoderLayer(N, HEADS, 4 * N, 0.0, "gelu", batch_first=True, norm_first=True)
    theirs = nn.TransformerDecoder(layer, LAYERS, nn.LayerNorm(N)).double().eval()

    def copy(target: nn.Module, source: nn.Module) -> None:
        target.load_state_dict(source.state_dict())

    copy(theirs.norm, decoder.norm)
    for to, own in zip(theirs.layers, decoder.layers, strict=True):
        for number, norm in enumerate((own.self_norm, own.cross_norm, own.feedforward_norm), start=1):
            copy(getattr(to, f"norm{number}"), norm)
        copy(to.linear1, own.feedforward[0])
        copy(to.linear2, own.feedforward[3])
        copy(to.self_attn.out_proj, own.self_output)
        copy(to.multihead_attn.out_proj, own.cross_output)
        inputs = {
            to.self_attn: own.self_inputs.weight,
            to.multihead_attn: torch.cat([own.cross_query.weight, own.cross_inputs.weight]),
        }
        for attention, weight in inputs.items():
            attention.in_proj_weight.data = weight.data
            nn.init.zeros_(attention.in_proj_bias)
    return theirs


def inputs_of(decoder: TransformerDecoder, regions: Tensor) -> tuple[Tensor, Tensor]:
    """What torch's decoder reads: the words with their positions, and the regions, of each caption."""
    words = decoder.embedding(shift_right(TOKENS)) * N**0.5 + decoder.positions.weight[: TOKENS.shape[1]]
    return words, decoder.read_regions(regions)[OWNERS]


def test_it_is_torch_s_decoder():
    captioner, regions = make_captioner(), make_regions().requires_grad_()
    decoder: Any = captioner.decoder
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS.shape[1], dtype=torch.float64)
    hidden = torch_decoder(decoder)(*inputs_of(decoder, regions), tgt_mask=mask, tgt_is_causal=True)
    trace, there = captioner(regions, OWNERS, TOKENS), TOKENS != PAD
    found, expected = trace.at_steps(trace.logits)[there], decoder.word_scores(hidden)[there]
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(logits.square().sum(), regions) for logits in (found, expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("map", "layer"), [("last", 2), (1, 0), (2, 1), (3, 2)])
@torch.no_grad()
def test_its_map_is_the_mean_over_the_heads_of_the_layer(map: Any, layer: int):
    captioner, regions = make_captioner(map), make_regions()
    decoder: Any = captioner.decoder
    theirs, found = torch_decoder(decoder), []
    theirs.layers[layer].multihead_attn.register_forward_hook(
        lambda module, given, _: found.append(module.forward(*given, need_weights=True)[1])
    )
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS.shape[1], dtype=torch.float64)
    theirs(*inputs_of(decoder, regions), tgt_mask=mask)
    trace, there = captioner(regions, OWNERS, TOKENS), TOKENS != PAD
    torch.testing.assert_close(trace.weights[there], found[0][there])
    assert trace.weights[~there].eq(0).all()
    assert trace.gates[there].eq(1).all()


def test_dropout_is_where_it_was_asked_for():
    regions = make_regions()
    for places in ([], ["regions"], ["words"], ["layers"], ["output"]):
        captioner = make_captioner(dropout=0.5, dropout_places=places).train()
        first, again = (captioner(regions, OWNERS, TOKENS).logits for _ in range(2))
        assert torch.equal(first, again) == (not places)


@torch.no_grad()
def test_in_half_the_precision_it_gives_nearly_the_same():
    captioner, regions = make_captioner().float(), make_regions().float()
    exact = captioner(regions, OWNERS, TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        rough = captioner(regions, OWNERS, TOKENS)
    assert rough.weights.dtype == torch.float32
    assert 0 < (rough.weights - exact.weights).abs().max() < 0.05
    searches = [BeamSearch(beam_size=2, max_length=5).generate(Ensemble([captioner], precision), [regions], VOCABULARY)
                for precision in ("float32", "bfloat16")]  # fmt: skip
    assert [len(captions) for captions in searches] == [2, 2]


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_wide_beam_finds_the_likeliest_of_all_captions(seed: int):
    captioner = make_captioner(seed=seed, words=len(VOCABULARY), spread=1.5)
    regions = random_regions(seed, images=3)
    captions = ended_captions(3)
    for image, caption in enumerate(best(captioner, regions, beam_size=128, max_length=3)):
        assert caption.tokens == by_merit(captioner, regions[image], captions, lambda log_p, _: log_p)[0]
        trace = captioner(regions[image : image + 1], torch.tensor([0]), torch.tensor([caption.tokens]))
        torch.testing.assert_close(caption.attention, trace.weights[0])


@torch.no_grad()
def test_it_speaks_with_an_lstm():
    """The likeliest caption by the mean p of each word."""
    captioners = [make_captioner(seed=3, words=len(VOCABULARY), spread=1.5), random_captioner(3)]
    regions = random_regions(3, images=2)
    found = BeamSearch(beam_size=128, max_length=3).generate(Ensemble(captioners), [regions, regions], VOCABULARY)
    for image, [caption] in enumerate(found):
        worth = {}
        for tokens in ended_captions(3):
            batch = torch.tensor([tokens])
            together = [
                captioner(regions[image : image + 1], torch.tensor([0]), batch).logits.softmax(dim=1).gather(1, batch.T)
                for captioner in captioners
            ]
            worth[tuple(tokens)] = torch.stack(together).mean(dim=0).log().sum().item()
        assert tuple(caption.tokens) == max(worth, key=worth.__getitem__)
        trace = captioners[0](regions[image : image + 1], torch.tensor([0]), torch.tensor([caption.tokens]))
        torch.testing.assert_close(caption.attention, trace.weights[0])


def test_what_does_not_fit_is_reported():
    soft, lstm = SoftAttention(D, N), LSTMDecoder(V, D, hidden_dim=N)
    transformer = partial(TransformerDecoder, V, D, hidden_dim=N, num_layers=2)
    with pytest.raises(ValueError, match="no use for SoftAttention; leave attention= out, or use attention=cross"):
        Captioner(soft, transformer())
    with pytest.raises(ValueError, match="LSTMDecoder is another one; use decoder=transformer"):
        Captioner(CrossAttention(D, N), lstm)
    with pytest.raises(ValueError, match="attention.map=3 is not a layer of the decoder, which has 2"):
        Captioner(CrossAttention(D, N, map=3), transformer())
    with pytest.raises(ValueError, match="hidden_dim=8 cannot be divided into decoder.num_heads=3"):
        transformer(num_heads=3)
    captioner = make_captioner(max_length=3)
    with pytest.raises(UserError, match="max_length=3 is too short for captions of 4 words"):
        captioner(make_regions(), OWNERS, TOKENS)
