"""The graphs of an export, what it refuses, and what it leaves behind."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import limited_files
from small_models import ATTENTIONS, KINDS, small_captioner, small_model
from torch import Tensor, nn

from showattendtell.decoding.confidence import Confidence
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.export.graphs import (
    ExportModel,
    Graph,
    check_graphs,
    compare,
    graphs_of,
    halve_weights,
    write_graphs,
)
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.tracing import lacks_onnx, open_session, to_onnx

needs_onnx = pytest.mark.skipif(lacks_onnx() != "", reason="needs the extra onnx")


def test_the_graphs_write_pytorchs_caption(exported: tuple[Path, ExportModel]):
    assert re.match(r"onnxruntime says '.+', as PyTorch; scores and maps differ by .e-0[5-9]$", check_graphs(*exported))


@pytest.mark.parametrize("threshold", [2.0, -1.0])
def test_the_script_is_as_sure_as_pytorch(exported: tuple[Path, ExportModel], threshold: float):
    """Of every photograph, of none, and without a calibration."""
    folder, model = exported
    card = {**model.card, "calibration": {**model.card["calibration"], "threshold": threshold}}
    confidence = Confidence(**{**model.confidence.state_dict(), "threshold": torch.tensor(threshold)})
    plain = {name: part for name, part in model.card.items() if name != "calibration"}
    pixels = torch.randint(256, (1, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for other in (model._replace(card=card, confidence=confidence), model._replace(card=plain, confidence=None)):
        caption, expected, difference = compare(folder, other, pixels)
        assert caption == expected != ""
        assert difference < 1e-3


def test_a_model_with_other_weights_is_found_out(exported: tuple[Path, ExportModel]):
    folder, model = exported
    other = model._replace(module=small_model(seed=1))
    with pytest.raises(
        UserError, match=r"captions of small differ: onnxruntime says '.*', (and|as) PyTorch.*; scores and"
    ):
        check_graphs(folder, other)
    assert "PyTorch" in check_graphs(folder, other._replace(card={**model.card, "precision": "float16"}))


def test_other_unlikeness_is_found_out(exported: tuple[Path, ExportModel]):
    folder, model = exported
    doubtful = Confidence(**{**model.confidence.state_dict(), "threshold": torch.tensor(-1.0)})
    with pytest.raises(UserError, match=r"captions of small differ: .*, as PyTorch; scores and maps differ by 1e\+00"):
        check_graphs(folder, model._replace(confidence=doubtful))


def exporting(name: str, graph: Graph) -> ExportModel:
    return ExportModel("", small_model(), None, {name: graph}, {"precision": "float32"})


@pytest.mark.slow
@needs_onnx
def test_a_graph_that_does_not_fit_on_the_disk_is_an_error_and_not_the_end_of_the_process(tmp_path: Path):
    graph = Graph(nn.Linear(200, 200), {"numbers": torch.ones(2, 200)}, ("values",))
    model = exporting("encode", graph)
    with pytest.raises(OSError, match="File too large"), limited_files(10_000):
        write_graphs(tmp_path, model)


@needs_onnx
def test_half_precision_rounds_large_weights_only():
    linear, x = nn.Linear(64, 48), torch.randn(5, 64)
    model = to_onnx(linear, {"numbers": x}, ["images"], ["values"])
    whole = model.ByteSize()
    halve_weights(model)
    [found] = open_session(model.SerializeToString()).run(None, {"numbers": x.numpy()})
    with torch.no_grad():
        linear.weight.copy_(linear.weight.half())
        torch.testing.assert_close(torch.from_numpy(found), linear(x), rtol=1e-5, atol=1e-5)
    assert model.ByteSize() < 0.6 * whole


class Moody(nn.Module):
    """What depends on its numbers."""

    def forward(self, numbers: Tensor) -> Tensor:
        return numbers if numbers.sum() > 0 else -numbers


@needs_onnx
def test_a_graph_that_has_no_form_in_onnx_is_reported(tmp_path: Path):
    model = exporting("begin", Graph(Moody(), {"numbers": torch.ones(2, 3)}, ("values",)))
    with pytest.raises(UserError, match=r"the graph begin of this model has no form in ONNX \(.+\)"):
        write_graphs(tmp_path, model)


OWNERS = torch.tensor([0, 0, 1, 1, 1])
TOKENS = torch.tensor([[4, 5, 2], [9, 3, 2], [4, 4, 4], [6, 7, 2], [5, 8, 9]])
"""Captions of two images."""


def model_with(attention: str, decoder: str = "lstm") -> ImageCaptioner:
    model = small_model()
    model.captioner = small_captioner(attention, decoder, model.encoder.region_dim)
    return model


def as_function(graph: Graph, way: str) -> Any:
    if way == "torch":
        return graph.module
    content = to_onnx(graph.module, graph.example, graph.axes, graph.outputs).SerializeToString()
    session = open_session(content)

    def run(*tensors: Tensor) -> Any:
        arrays = {name: tensor.numpy() for name, tensor in zip(graph.example, tensors, strict=True)}
        outputs = [torch.from_numpy(array) for array in session.run(None, arrays)]
        return outputs if len(outputs) > 1 else outputs[0]

    return run


IN_ONNX = dict.fromkeys([*KINDS[::3], *KINDS[-2:]])
ONNX = [needs_onnx, pytest.mark.slow]
"""Marks of the graphs that are exported for one test; those of `exported` are fast."""
WAYS = [pytest.param(*kind, "torch") for kind in KINDS]
WAYS += [pytest.param(*kind, "onnx", marks=ONNX) for kind in IN_ONNX]


@pytest.mark.parametrize(("attention", "decoder", "way"), WAYS)
@torch.no_grad()
def test_steps_give_the_scores_and_maps_of_all_steps_at_once(attention: str, decoder: str, way: str):
    model = model_with(attention, decoder)
    regions = torch.randn(2, 4, model.encoder.region_dim)
    trace = model.captioner(regions, OWNERS, TOKENS)
    expected = trace.at_steps(trace.logits.log_softmax(dim=1))
    with plain_torch():
        graphs = graphs_of(model, TOKENS.shape[1])  # some have room for these words only
        begin, step = as_function(graphs["begin"], way), as_function(graphs["step"], way)
        keys, hidden, cell = begin(regions)
        hidden, cell, words = hidden[OWNERS], cell[OWNERS], torch.ones_like(OWNERS)
        for number in range(TOKENS.shape[1]):
            log_p, weights, gate, hidden, cell = step(regions, keys, OWNERS, hidden, cell, words)
            close = {"rtol": 1e-4, "atol": 1e-5}
            torch.testing.assert_close(log_p, expected[:, number], **close)
            torch.testing.assert_close(weights, trace.weights[:, number], **close)
            torch.testing.assert_close(gate, trace.gates[:, number], **close)
            words = TOKENS[:, number]


def test_the_graph_of_unlikeness_has_that_of_pytorch(exported: tuple[Path, ExportModel]):
    folder, model = exported
    session = open_session((folder / "onnx/unlikeness.onnx").read_bytes())
    for number in (1, 5):
        regions = torch.rand(number, 4, model.module.encoder.region_dim)
        [found] = session.run(None, {"regions": regions.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model.confidence(regions), rtol=1e-4, atol=1e-5)


def test_attention_that_draws_is_not_exported():
    model = model_with("hard, argmax")
    model.captioner.attention.inference_mode = "sample"  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"set attention\.inference_mode=argmax"):
        graphs_of(model, 6)


@pytest.mark.skipif("cross" not in ATTENTIONS, reason="without the extension")
def test_captions_that_are_too_long_for_the_positions_are_not_exported():
    model = model_with("cross", "transformer")
    model.captioner.decoder.max_length = 5  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"max_length=5 is too short for captions of 6 words"), plain_torch():
        graphs_of(model, 6)


def test_attention_whose_keys_are_no_tensor_is_not_exported():
    model = model_with("dot")
    attention: Any = model.captioner.attention
    precompute = attention.precompute
    attention.precompute = lambda regions: precompute(regions)._replace(keys=[1])
    with pytest.raises(UserError, match="SoftAttention keeps keys that are not tensors"), plain_torch():
        graphs_of(model, 6)
