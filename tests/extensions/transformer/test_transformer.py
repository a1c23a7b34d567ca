"""The transformer decoder against torch's, and its attention maps against products of whole matrices."""

from functools import partial
from typing import Any

import pytest
import torch
from random_models import VOCABULARY, best, ended_captions, probabilities, random_captioner, random_regions
from random_models import ranked as by_merit
from torch import Tensor, nn

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.decoding.sampling import Sampling
from showattendtell.errors import UserError
from showattendtell.extensions.transformer.decoder import CrossAttention, TransformerDecoder, attend
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.losses.self_critical import log_prob
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner, shift_right
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.text.vocabulary import EOS, PAD

V, D, N, LAYERS, HEADS = 9, 5, 8, 3, 2
OWNERS = torch.tensor([1, 0, 1, 0])
TOKENS = torch.tensor([[4, 5, 6, EOS], [7, EOS, PAD, PAD], [8, 4, EOS, PAD], [5, 5, 5, EOS]])


def make_captioner(map: Any = "last", **settings: Any) -> Captioner:
    torch.manual_seed(0)
    decoder = TransformerDecoder(
        V, D, **{"embedding_dim": N, "hidden_dim": N, "num_layers": LAYERS, "num_heads": HEADS} | settings
    )
    captioner = Captioner(CrossAttention(D, N, map), decoder).double().eval()
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, std=0.7)
    return captioner


def make_regions(images: int = 2) -> Tensor:
    return torch.randn(images, 6, D, generator=torch.Generator().manual_seed(1)).double()


def random_transformer(seed: int) -> Captioner:
    """One of the vocabulary of `random_models`."""
    torch.manual_seed(seed)
    decoder = TransformerDecoder(len(VOCABULARY), 5, 3, 4, num_layers=2, num_heads=2)
    captioner = Captioner(CrossAttention(5, 4), decoder)
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, std=1.5)
    return captioner.double().eval()


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


@torch.no_grad()
def test_it_is_torch_s_decoder():
    captioner, regions = make_captioner(), make_regions()
    decoder: Any = captioner.decoder
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS.shape[1], dtype=torch.float64)
    hidden = torch_decoder(decoder)(*inputs_of(decoder, regions), tgt_mask=mask, tgt_is_causal=True)
    trace, there = captioner(regions, OWNERS, TOKENS), TOKENS != PAD
    torch.testing.assert_close(trace.at_steps(trace.logits)[there], decoder.word_scores(hidden)[there])


@pytest.mark.parametrize(("map", "layer"), [("last", 2), (1, 0), (2, 1), (3, 2)])
@torch.no_grad()
def test_its_map_is_the_mean_over_the_heads_of_the_layer(map: Any, layer: int):
    captioner, regions = make_captioner(map), make_regions()
    decoder: Any = captioner.decoder
    theirs, found = torch_decoder(decoder), []

    def look(module: nn.MultiheadAttention, given: tuple[Tensor, ...], _: Any) -> None:
        output = nn.functional.multi_head_attention_forward(
            *(part.transpose(0, 1) for part in given[:3]), N, HEADS, module.in_proj_weight, module.in_proj_bias, None,
            None, False, 0.0, module.out_proj.weight, module.out_proj.bias, average_attn_weights=True,
        )  # fmt: skip
        found.append(output[1])

    theirs.layers[layer].multihead_attn.register_forward_hook(look)
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS.shape[1], dtype=torch.float64)
    theirs(*inputs_of(decoder, regions), tgt_mask=mask)
    trace, there = captioner(regions, OWNERS, TOKENS), TOKENS != PAD
    torch.testing.assert_close(trace.weights[there], found[0][there])
    assert trace.weights[~there].eq(0).all()
    assert trace.gates[there].eq(1).all()


@torch.no_grad()
def test_later_words_and_padding_change_nothing_before_them():
    captioner, regions = make_captioner(), make_regions()
    full = captioner(regions, OWNERS[:1], TOKENS[:1])
    for length in range(1, 4):
        changed = torch.cat([TOKENS[:1, :length], TOKENS[3:, length:]], dim=1)
        padded = torch.cat([TOKENS[:1, :length], torch.full((1, 7), PAD)], dim=1)
        for other in (TOKENS[:1, :length], changed, padded):
            trace = captioner(regions, OWNERS[:1], other)
            torch.testing.assert_close(trace.logits[:length], full.logits[:length])
            torch.testing.assert_close(trace.weights[:, :length], full.weights[:, :length])
    other = torch.tensor([[4, 5, 8, EOS]])  # the third word is read in the last step
    assert not torch.allclose(captioner(regions, OWNERS[:1], other).logits[3], full.logits[3])


def test_weights_do_not_change_what_attention_gives():
    queries, keys, values = torch.randn(3, 2, HEADS, 5, 4, dtype=torch.float64)
    fast, nothing = attend(queries, keys, values, with_weights=False)
    slow, weights = attend(queries, keys, values, with_weights=True)
    torch.testing.assert_close(slow, fast)
    assert nothing is None
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(2, 5).double())  # type: ignore[union-attr]


def test_gradients_of_the_loss_are_those_of_differences():
    captioner = make_captioner(num_layers=2, embedding_dim=3, tie_embeddings=True)
    names = ["decoder.layers.0.self_inputs.weight", "decoder.layers.1.cross_inputs.weight", "decoder.embedding.weight"]
    loss = SoftLoss(doubly_stochastic_weight=0.5, label_smoothing=0.1)

    def cost(regions: Tensor, *weights: Tensor) -> Tensor:
        given = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(
            Loss(captioner, loss), {f"captioner.{k}": v for k, v in given.items()}, regions
        )

    weights = [captioner.get_parameter(name).detach().clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(cost, (make_regions().requires_grad_(), *weights), fast_mode=True)


class Loss(nn.Module):
    def __init__(self, captioner: Captioner, loss: SoftLoss):
        super().__init__()
        self.captioner, self.loss = captioner, loss

    def forward(self, regions: Tensor) -> Tensor:
        return total(self.loss(self.captioner, regions, OWNERS, TOKENS).terms)


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
    captioner, regions = random_transformer(seed), random_regions(seed, images=3)
    captions = ended_captions(3)
    for image, caption in enumerate(best(captioner, regions, beam_size=128, max_length=3)):
        assert caption.tokens == by_merit(captioner, regions[image], captions, lambda log_p, _: log_p)[0]
        trace = captioner(regions[image : image + 1], torch.tensor([0]), torch.tensor([caption.tokens]))
        torch.testing.assert_close(caption.attention, trace.weights[0])


@torch.no_grad()
def test_images_that_are_searched_together_get_what_each_gets_alone():
    captioner, regions = random_transformer(1), random_regions(1, images=12)
    decoding, ensemble = BeamSearch(max_length=9, beam_size=3), Ensemble([captioner])
    for image, [caption] in enumerate(decoding.generate(ensemble, [regions], VOCABULARY)):
        [[alone]] = decoding.generate(ensemble, [regions[image : image + 1]], VOCABULARY)
        assert caption.tokens == alone.tokens
        torch.testing.assert_close(caption.attention, alone.attention)


@pytest.mark.parametrize("first", ["lstm", "transformer"])
@torch.no_grad()
def test_it_speaks_with_an_lstm(first: str):
    """The likeliest caption by the mean p of each word."""
    captioners = [random_captioner(3), random_transformer(3)]
    captioners = captioners if first == "lstm" else captioners[::-1]
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


@torch.no_grad()
def test_samples_come_as_often_as_they_are_likely():
    captioner, regions = random_transformer(2), random_regions(2, images=1)
    sampling = Sampling(num_captions=4000, max_length=2)
    torch.manual_seed(0)
    [captions] = sampling.generate(Ensemble([captioner]), [regions], VOCABULARY)
    said = [tuple(caption.tokens) for caption in captions]
    expected = probabilities(captioner, regions, ended_captions(2))
    for tokens, p in expected.items():
        assert said.count(tokens) / len(said) == pytest.approx(p, abs=4 * (p / len(said)) ** 0.5 + 1e-9)


@torch.no_grad()
def test_rewards_learn_the_log_p_that_sampling_has():
    captioner, regions = random_transformer(0), random_regions(0, images=3)
    constraints = Sampling(max_length=4).in_tokens(VOCABULARY)
    tokens, log_p, *_ = Sampling(num_captions=5, max_length=4).sample(Ensemble([captioner]), [regions], constraints)
    ends = tokens == EOS
    after = ends.cumsum(dim=1) > ends.long()
    log_p = log_p.masked_fill(after, 0).sum(dim=1)
    # sampling subtracts the normalizer of all words, `log_prob` that of those that can be said
    found = log_prob(captioner, regions, tokens.masked_fill(after, PAD))
    assert (found >= log_p - 1e-9).all()
    rows = torch.arange(3).repeat_interleave(5)
    trace = captioner(regions, rows, tokens.masked_fill(after, PAD))
    logits = trace.at_steps(trace.logits.log_softmax(dim=1)).gather(2, tokens.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(log_p, logits.masked_fill(after, 0).sum(dim=1))


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
