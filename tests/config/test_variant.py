"""`variant=paper` against `variant=arctic`, the released code: a test for each point in which the two differ."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.compose import compose
from showattendtell.config.instantiate import build, build_captioner
from showattendtell.data.vocabulary import EOS
from showattendtell.datamodules.datamodule import BUCKETINGS
from showattendtell.datamodules.samplers import WholeBatchSampler
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.training.optimizers import GravesRMSprop

V, D, M, N = 9, 6, 3, 4
REGIONS = torch.randn(2, 5, D, generator=torch.Generator().manual_seed(0))
OWNERS = torch.tensor([0, 1, 1])
TOKENS = torch.tensor([[4, 5, EOS], [6, 4, EOS], [7, 8, EOS]])


@cache
def configured(variant: str, *choices: str) -> DictConfig:
    sizes = [f"++decoder.embedding_dim={M}", f"++decoder.hidden_dim={N}"]
    return compose("train", [f"variant={variant}", *sizes, *choices])


def model(variant: str, *choices: str) -> Captioner:
    torch.manual_seed(0)
    return build_captioner(configured(variant, *choices), region_dim=D, vocabulary_size=V)


def decoders() -> Iterator[LSTMDecoder]:
    """The paper's, then the released code's."""
    yield model("paper").decoder
    yield model("arctic").decoder


def hard(variant: str) -> HardAttention:
    return model(variant, "attention=hard").attention


def settings(node: str, variant: str, *choices: str) -> dict[str, Any]:
    return OmegaConf.to_container(configured(variant, *choices)[node])


SETTINGS = {
    "decoder.first_input": (None, "zero"),
    "decoder.dropout_places": (None, ["start", "hidden", "output"]),
    "attention.score.width": (None, "region"),
    "attention.score.depth": (None, 2),
    "attention.expectation_scope": (None, "batch"),
    "loss.penalty_reduction": (None, "locations"),
    "loss.penalty_gradient": (None, False),
    "monitor": ("bleu4", "nll"),
    "brevity_penalty": (False, True),
    "callbacks.early_stopping.patience": (5, 10),
    "decoding.shrink_beam": (None, True),
}
"""The paper's, where None is the default of the class, and those of the released code."""


def test_the_settings_of_the_released_code():
    configs = [configured(variant, "attention=hard") for variant in ("paper", "arctic")]
    for setting, expected in SETTINGS.items():
        assert tuple(OmegaConf.select(config, setting) for config in configs) == expected, setting


def test_the_first_state_comes_from_two_perceptrons_or_from_two_heads_on_shared_layers():
    paper, released = (decoder.eval() for decoder in decoders())
    mean = REGIONS.mean(dim=1)
    hidden, cell = paper.first_state.hidden, paper.first_state.cell
    for perceptron, part in zip((hidden, cell), paper.init_state(REGIONS), strict=True):
        relu, tanh = (layer for layer in perceptron.modules() if isinstance(layer, torch.nn.Linear))
        torch.testing.assert_close(part, torch.tanh(tanh(torch.relu(relu(mean)))))
    shared = torch.relu(released.first_state.shared[0](mean))
    for head, part in zip(
        (released.first_state.hidden, released.first_state.cell), released.init_state(REGIONS), strict=True
    ):
        torch.testing.assert_close(part, torch.tanh(head[0](shared)))


def test_the_gate_is_soft_attentions_alone_or_hard_attentions_too():
    gated = {
        (variant, name): model(variant, f"attention={name}").attention.gate is not None
        for variant in ("paper", "arctic")
        for name in ("soft", "hard")
    }
    assert [choice for choice, has_gate in gated.items() if not has_gate] == [("paper", "hard")]


def test_the_deep_output_is_linear_or_a_tanh():
    parts = torch.randn(M), torch.randn(N), torch.randn(D)
    for decoder, activation in zip(decoders(), (torch.nn.Identity(), torch.tanh), strict=True):
        word, hidden, context = parts
        total = word + decoder.hidden_output(hidden) + decoder.context_output(context)
        torch.testing.assert_close(decoder.eval().score_words(*parts), decoder.word_scores(activation(total)))


def test_the_reward_and_the_scale_of_its_term():
    """log p(y|s), averaged over the batch; or log p(y|s) / T over 10, summed over the batch."""
    for variant, divisor, averaged in (("paper", 1, len(TOKENS)), ("arctic", 10 * TOKENS.shape[1], 1)):
        captioner = model(variant, "attention=hard", "++attention.expectation_prob=0.0", "decoder.dropout=0.0")
        loss = build(configured(variant, "attention=hard", "++loss.reward_weight=1").loss)
        result = loss(captioner, REGIONS, OWNERS, TOKENS)
        words = result.outputs.at_steps(result.outputs.logits).log_softmax(dim=2)
        log_p = words.gather(2, TOKENS.unsqueeze(2)).squeeze(2).sum(dim=1).detach()
        log_s = result.outputs.sample.log_prob.sum(dim=1)
        torch.testing.assert_close(result.terms["reinforce"], -(log_p / divisor * log_s).sum() / averaged)


def test_the_entropy_term_is_averaged_or_summed_over_the_batch():
    for variant, averaged in (("paper", len(TOKENS)), ("arctic", 1)):
        captioner = model(variant, "attention=hard")
        result = build(configured(variant, "attention=hard").loss)(captioner, REGIONS, OWNERS, TOKENS)
        torch.testing.assert_close(result.terms["entropy"], -0.002 * result.outputs.sample.entropy.sum() / averaged)


def test_at_test_time_hard_attention_looks_at_a_sample_or_at_the_expectation():
    assert hard("paper").eval().precompute(REGIONS).use_expectation is None
    assert hard("arctic").eval().precompute(REGIONS).use_expectation.all()
    assert hard("paper").inference_mode == "sample"


def test_the_first_weights_are_each_layers_own_or_small_and_orthogonal():
    paper, released = model("paper", "decoder.hidden_dim=6"), model("arctic", "decoder.hidden_dim=6")
    identity = torch.eye(6)
    square = released.decoder.first_state.shared[0]
    torch.testing.assert_close(square.weight @ square.weight.T, identity)
    for block in released.decoder.hidden_gates.weight.chunk(4):
        torch.testing.assert_close(block @ block.T, identity)
    assert 0.005 < released.decoder.embedding.weight.std() < 0.015
    assert 0.005 < released.decoder.read_word.weight.std() < 0.015
    biases = [parameter for name, parameter in released.named_parameters() if name.endswith("bias")]
    assert not any(bias.any() for bias in biases)
    assert paper.decoder.embedding.weight.std() > 0.3
    assert paper.decoder.read_word.bias.any()


def test_the_optimizer_is_the_papers_rmsprop_or_graves_own():
    parameters = [torch.nn.Parameter(torch.zeros(2, 2))]
    paper = build(configured("paper", "dataset=flickr8k").optimizer, params=parameters)
    released = build(configured("arctic", "dataset=flickr8k").optimizer, params=parameters)
    assert isinstance(paper, torch.optim.RMSprop)
    assert isinstance(released, GravesRMSprop)
    assert released.defaults["lr"] == 1e-4
    assert settings("schedule", "arctic")["final"] == 1


def test_lengths_are_drawn_or_visited_in_turn():
    lengths = np.repeat([3, 4, 5], 40)

    def visited(variant: str) -> list[int]:
        bucketing = BUCKETINGS[settings("data", variant).get("bucketing", "paper")]
        batches = WholeBatchSampler(bucketing(lengths, np.arange(120), 4, False), 1)
        return [int(lengths[batch[0]]) for batch in batches]

    turns = [visited("arctic")[start : start + 3] for start in range(0, 30, 3)]
    assert all(sorted(turn) == [3, 4, 5] for turn in turns)
    assert any(len(set(visited("paper")[start : start + 3])) < 3 for start in range(0, 30, 3))
