"""`variant=paper` against `variant=arctic`, the released code: a test for each point in which the two differ."""

from collections.abc import Iterator
from functools import cache

import torch
from omegaconf import OmegaConf

from showattendtell.config.compose import as_record, as_settings, compose
from showattendtell.config.instantiate import build_captioner
from showattendtell.config.schemas import TrainSettings
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder

V, D, M, N = 9, 6, 3, 4
REGIONS = torch.randn(2, 5, D, generator=torch.Generator().manual_seed(0))


@cache
def configured(variant: str, *choices: str) -> TrainSettings:
    sizes = [f"++decoder.embedding_dim={M}", f"++decoder.hidden_dim={N}"]
    return as_settings(compose("train", [f"variant={variant}", *sizes, *choices]))


def model(variant: str, *choices: str) -> Captioner:
    torch.manual_seed(0)
    chosen = configured(variant, *choices)
    return build_captioner(chosen.attention, chosen.decoder, D, V, chosen.weight_init)


def decoders() -> Iterator[LSTMDecoder]:
    """The paper's, then the released code's."""
    yield model("paper").decoder
    yield model("arctic").decoder


SETTINGS = {
    "decoder.first_input": (None, "zero"),
    "decoder.dropout_places": (None, ["start", "hidden", "output"]),
    "attention.score.width": (None, "region"),
    "attention.score.depth": (None, 2),
    "attention.gate": (None, "scalar"),
    "attention.estimator": (None, "reinforce_arctic"),
    "attention.expectation_scope": (None, "batch"),
    "attention.inference_mode": (None, "expectation"),
    "loss.penalty_reduction": (None, "locations"),
    "loss.penalty_gradient": (None, False),
    "data.bucketing": (None, "round_robin"),
    "optimizer.centered": (None, True),
    "optimizer.alpha": (None, 0.95),
    "optimizer.momentum": (None, 0.9),
    "optimizer.lr": (2e-4, 1e-4),
    "monitor": ("bleu4", "loss"),
    "brevity_penalty": (False, True),
    "callbacks.early_stopping.patience": (5, 10),
    "decoding.shrink_beam": (None, True),
}
"""The paper's, where None is the default of the class, and those of the released code."""


def test_the_settings_of_the_released_code():
    records = [as_record(configured(variant, "attention=hard", "dataset=flickr8k")) for variant in ("paper", "arctic")]
    for setting, expected in SETTINGS.items():
        assert tuple(OmegaConf.select(OmegaConf.create(record), setting) for record in records) == expected, setting


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


def test_the_deep_output_is_linear_or_a_tanh():
    parts = torch.randn(M), torch.randn(N), torch.randn(D)
    for decoder, activation in zip(decoders(), (torch.nn.Identity(), torch.tanh), strict=True):
        word, hidden, context = parts
        total = word + decoder.hidden_output(hidden) + decoder.context_output(context)
        torch.testing.assert_close(decoder.eval().score_words(*parts), decoder.word_scores(activation(total)))


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
