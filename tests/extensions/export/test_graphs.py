"""The graphs compute what the captioner computes, for any number of images and captions."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from extension_cases import cases
from slow_cases import slow_after
from small_models import ATTENTIONS, KINDS, VOCABULARY, D, small_captioner, small_model
from torch import Tensor, nn

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.export.formats import trace_graphs
from showattendtell.extensions.export.graphs import Graph, graphs_of
from showattendtell.models.calibration import Calibration
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.tracing import open_session, to_onnx

L = 4
OWNERS = torch.tensor([0, 0, 1, 1, 1])
TOKENS = torch.tensor([[4, 5, 2], [9, 3, 2], [4, 4, 4], [6, 7, 2], [5, 8, 9]])
"""Captions of two images."""


class Grids(nn.Module):
    """In the place of an encoder: the means of an image's pixels in 2 x L fields are its regions (L, D)."""

    grid, region_dim = (2, 2), D

    def __init__(self) -> None:
        super().__init__()
        self.preprocessing = small_model().encoder.preprocessing._replace(crop=64, mean=(0.0,) * 3, std=(1.0,) * 3)

    def forward(self, pixels: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(pixels, (2, L)).flatten(1, 2).transpose(1, 2)

    def prepare_regions(self, regions: Tensor) -> Tensor:
        return 2 * regions


def graphs_and_programs(captioner: Captioner, *names: str) -> tuple[dict[str, Graph], dict[str, Any]]:
    model = ImageCaptioner(Grids(), captioner, VOCABULARY, BeamSearch(allow_unk=False))  # type: ignore[arg-type]
    with plain_torch():
        graphs = {name: graph for name, graph in graphs_of(model.eval(), "float32", 6).items() if name in names}
        return graphs, trace_graphs(graphs)


def as_run(graph: Graph, program: Any, way: str) -> Any:
    if way == "torch":
        return program.module()
    session = open_session(to_onnx(program, list(graph.inputs), graph.outputs).model_proto.SerializeToString())

    def run(*tensors: Tensor) -> list[Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in zip(graph.inputs, tensors, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    return run


ONNX = pytest.param("onnx", marks=pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs the extra onnx"))


MARGINAL = ("marginal", "lstm")

WAYS = [
    pytest.param(*kind, "torch", marks=[] if kind in (KINDS[0], MARGINAL, KINDS[-2]) else pytest.mark.slow)
    for kind in KINDS
]
WAYS += [
    pytest.param(*kind, *ONNX.values, marks=[*ONNX.marks, pytest.mark.slow])
    for kind in dict.fromkeys([*KINDS[::3], MARGINAL, *KINDS[-2:]])
]


@pytest.mark.parametrize(("attention", "decoder", "way"), WAYS)
@torch.no_grad()
def test_steps_give_the_scores_and_maps_of_all_steps_at_once(attention: str, decoder: str, way: str):
    captioner = small_captioner(attention, decoder)
    regions = torch.randn(2, L, D)
    trace = captioner(regions, OWNERS, TOKENS)
    expected = trace.at_steps(trace.logits.log_softmax(dim=1))
    graphs, programs = graphs_and_programs(captioner, "begin", "step")
    begin, step = (as_run(graphs[name], programs[name], way) for name in ("begin", "step"))
    keys, hidden, cell = begin(regions)
    hidden, cell, words = hidden[OWNERS], cell[OWNERS], torch.ones_like(OWNERS)
    for number in range(TOKENS.shape[1]):
        log_p, weights, gate, hidden, cell = step(regions, keys, OWNERS, hidden, cell, words)
        close = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(log_p, expected[:, number], **close)
        torch.testing.assert_close(weights, trace.weights[:, number], **close)
        torch.testing.assert_close(gate, trace.gates[:, number], **close)
        words = TOKENS[:, number]


@pytest.mark.parametrize(
    "kind",
    slow_after(1, [["soft", "lstm", D, 3], *cases("EXPORTED").values()]),
    ids=["soft", *cases("EXPORTED")],
)
@pytest.mark.parametrize("way", ["torch", ONNX])
@torch.no_grad()
def test_the_loop_in_the_graph_writes_what_beam_1_does_for_any_number_of_images(kind: Any, way: str):
    captioner = small_captioner(*kind)
    fields = torch.randn(7, 3, 2, L, generator=torch.Generator().manual_seed(1))
    pixels = nn.functional.interpolate(fields, (64, 64))
    model = ImageCaptioner(Grids(), captioner, VOCABULARY, BeamSearch(max_length=6, allow_unk=False))  # type: ignore[arg-type]
    expected = [caption for [caption] in model.generate(pixels)]
    assert len({len(caption.tokens) for caption in expected}) > 1
    graphs, programs = graphs_and_programs(captioner, "greedy")
    run = as_run(graphs["greedy"], programs["greedy"], way)
    for number in (1, 7):
        for caption, tokens, total, weights, gates in zip(expected, *run(pixels[:number]), strict=False):
            length = len(caption.tokens)
            assert tokens.tolist() == caption.tokens + [0] * (6 - length)
            assert total.item() == pytest.approx(caption.log_prob, rel=1e-4)
            torch.testing.assert_close(weights[:length], caption.attention, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(gates[:length], caption.gates, rtol=1e-4, atol=1e-5)
            assert not weights[length:].any()


@pytest.mark.parametrize("way", ["torch", ONNX])
@torch.no_grad()
def test_a_calibrated_model_has_a_graph_of_unlikeness(way: str):
    directions, _ = torch.linalg.qr(torch.randn(D, 2))
    calibration = Calibration(torch.zeros(2), torch.rand(D), directions, torch.tensor(0.5))
    model = ImageCaptioner(Grids(), small_captioner(), VOCABULARY, BeamSearch())  # type: ignore[arg-type]
    with plain_torch():
        graph = graphs_of(model.eval(), "float32", 6, calibration)["unlikeness"]
        program = trace_graphs({"unlikeness": graph})["unlikeness"]
    for number in (1, 5):
        regions = torch.rand(number, L, D)
        [found] = as_run(graph, program, way)(regions) if way == "onnx" else [as_run(graph, program, way)(regions)]
        torch.testing.assert_close(found, calibration(regions), rtol=1e-4, atol=1e-5)


def test_attention_that_draws_is_not_exported():
    captioner = small_captioner("hard, argmax")
    captioner.attention.inference_mode = "sample"  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"set attention\.inference_mode=argmax"):
        graphs_and_programs(captioner)


@pytest.mark.skipif("cross" not in ATTENTIONS, reason="without the extension")
def test_a_rollout_and_captions_that_are_too_long_for_the_positions_are_not_exported():
    captioner = small_captioner("cross", "transformer")
    captioner.attention.map = "rollout"  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"set attention\.map=last or the number of a layer"):
        graphs_and_programs(captioner)
    captioner.attention.map, captioner.decoder.max_length = "last", 5  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"max_length=5 is too short for captions of 6 words"):
        graphs_and_programs(captioner)


def test_attention_whose_keys_are_no_tensor_is_not_exported():
    captioner = small_captioner("dot")
    precompute = captioner.attention.precompute
    captioner.attention.precompute = lambda regions: precompute(regions)._replace(keys=[1])  # type: ignore[method-assign]
    with pytest.raises(UserError, match="SoftAttention keeps keys that are not tensors"):
        graphs_and_programs(captioner)


def test_a_model_whose_way_depends_on_its_numbers_is_reported():
    class Moody(type(small_captioner("dot").attention)):  # type: ignore[misc]
        def forward(self, cache: Any, state: Any) -> Any:
            seen = super().forward(cache, state)
            return seen if state.hidden.sum() > 0 else seen._replace(gate=seen.gate / 2)

    captioner = small_captioner("dot")
    captioner.attention.__class__ = Moody
    with pytest.raises(UserError, match=r"torch\.export cannot trace the graph step of this model"):
        graphs_and_programs(captioner, "step")
