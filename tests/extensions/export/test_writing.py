"""What an export refuses, and what it leaves behind."""

import hashlib
import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disks import small_disk
from slow_cases import slow_after
from small_models import ATTENTIONS, KINDS, VOCABULARY, D, small_captioner, small_model
from torch import Tensor, nn

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import Calibration, ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.export import formats
from showattendtell.extensions.export.formats import (
    Agreement,
    FormatName,
    check_formats,
    compare,
    halve_weights,
    print_export,
    trace_graphs,
    write_formats,
    write_metadata,
)
from showattendtell.extensions.export.graphs import ExportModel, Graph, export_model, graphs_of
from showattendtell.extensions.export.run_onnx import OnnxCaption
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.files import new_folder, write_errors
from showattendtell.runtime.tracing import lacks_onnx, open_session, to_onnx

SIDE = 64


def noises(number: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (number, 1, 3, SIDE, SIDE), np.uint8))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportModel, Path]:
    """A model as a program."""
    folder, checkpoint = tmp_path_factory.mktemp("exported"), tmp_path_factory.mktemp("weights") / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    with plain_torch():
        model = export_model("small", small_model(), checkpoint, max_length=5)
        write_formats(folder, model, ["torch"])
    return model, folder


@pytest.mark.slow
def test_programs_read_again_write_pytorchs_captions(exported: Any):
    model, folder = exported
    found = check_formats(model, folder, ["torch"], noises(5))
    assert {runner: agreement.same for runner, agreement in found.items()} == {"torch.export": 5}


def test_the_card_has_vocabulary_and_checksums(exported: Any):
    model, folder = exported
    write_metadata(folder, model.metadata)
    card = json.loads((folder / "captioner.json").read_text())
    assert card["vocabulary"][card["special"]["eos"]] == "<eos>"
    assert card["checkpoint"] == {"name": "best.ckpt", "sha256": hashlib.sha256(b"weights").hexdigest()}
    for name, file in card["files"].items():
        content = (folder / name).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert set(card["files"]) == {f"torch/{name}.pt2" for name in card["graphs"]}
    assert card["graphs"] == ["encode", "begin", "step"]


def test_a_model_with_other_weights_is_found_out(exported: Any):
    model, folder = exported
    other = model._replace(module=small_model(seed=1))
    with pytest.raises(UserError, match=r"torch\.export says '.*' \(log p .*\) of image \d, and PyTorch '"):
        check_formats(other, folder, ["torch"], noises(3))


@pytest.mark.parametrize("found", [Agreement(0, 0.01, 0.0), Agreement(1, 0.0, 0.01), Agreement(1, math.nan, 0.0)])
def test_a_difference_of_any_kind_is_refused(exported: Any, found: Agreement, monkeypatch: pytest.MonkeyPatch):
    model, folder = exported
    monkeypatch.setattr(formats, "compare", lambda *_: found)
    with pytest.raises(UserError, match=r"torch\.export says '.*' \(log p .*\) of image 1, and PyTorch '"):
        check_formats(model, folder, ["torch"], noises(1))


def test_captions_are_compared_in_log_p_and_those_that_are_equal_in_their_attention():
    def caption(word: int, log_p: float, alpha: float = 0.5) -> OnnxCaption:
        return OnnxCaption([word, 2], log_p, np.full((2, 2), alpha), np.ones(2))

    own = caption(4, -5.0)
    assert compare(caption(4, -5.001), own) == (1, pytest.approx(0.0002), 0)
    assert compare(caption(5, -5.1), own) == (0, pytest.approx(0.02), 0)
    assert compare(caption(4, -5.0, alpha=0.6), own) == (1, 0, pytest.approx(0.1))
    assert math.isnan(compare(caption(4, float("nan")), own).log_prob)


@pytest.mark.parametrize(("precision", "reason"), [("float32", "equally likely"), ("float16", "rounded to float16")])
def test_captions_that_differ_are_explained(precision: str, reason: str, capsys: pytest.CaptureFixture[str]):
    print_export({"onnxruntime": Agreement(8, 0.0, 0.0)}, 8, precision)
    assert "8 of 8" in capsys.readouterr().out
    print_export({"onnxruntime": Agreement(7, 0.0, 0.0)}, 8, precision)
    table, _, sentence = capsys.readouterr().out.rstrip().rpartition("\n")
    assert "7 of 8" in table
    assert reason in sentence


def exporting(name: str, graph: Graph) -> ExportModel:
    return ExportModel("", small_model(), {name: graph}, {"precision": "float32"})


@pytest.mark.parametrize("name", slow_after(1, ["torch", "onnx"]))
def test_a_full_disk_is_reported_with_the_folder_and_leaves_nothing(tmp_path: Path, name: FormatName):
    if name == "onnx" and lacks_onnx():
        pytest.skip("needs the extra onnx")
    graph = Graph(nn.Linear(200, 200), {"numbers": torch.ones(2, 200)}, ("values",))
    with small_disk(tmp_path / "disk", "32k") as disk:
        with (
            pytest.raises(UserError, match=rf"{disk}/out cannot be written \(No space left on device\)"),
            new_folder(disk / "out", whole=True) as folder,
            write_errors(folder),
        ):
            write_formats(folder, exporting("encode", graph), [name])
        assert list(disk.iterdir()) == []


@pytest.mark.skipif(lacks_onnx() != "", reason="needs the extra onnx")
def test_half_precision_rounds_large_weights_only():
    linear, x = nn.Linear(64, 48), torch.randn(5, 64)
    graph = Graph(linear, {"numbers": x}, ("values",))
    model = to_onnx(trace_graphs({"begin": graph})["begin"], ["numbers"], ["values"]).model_proto
    whole = model.ByteSize()
    halve_weights(model)
    [found] = open_session(model.SerializeToString()).run(None, {"numbers": x.numpy()})
    with torch.no_grad():
        linear.weight.copy_(linear.weight.half())
        torch.testing.assert_close(torch.from_numpy(found), linear(x), rtol=1e-5, atol=1e-5)
    assert model.ByteSize() < 0.6 * whole


class Bessel(nn.Module):
    """What ONNX has no operator for."""

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(numbers)


@pytest.mark.skipif(lacks_onnx() != "", reason="needs the extra onnx")
def test_a_graph_that_a_format_cannot_hold_is_reported(tmp_path: Path):
    model = exporting("begin", Graph(Bessel(), {"numbers": torch.ones(2, 3)}, ("values",)))
    with pytest.raises(UserError, match=r"begin cannot be written as onnx \(.+\); leave onnx out of formats"):
        write_formats(tmp_path, model, ["onnx"])


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
        graphs = {name: graph for name, graph in graphs_of(model.eval(), 6).items() if name in names}
        return graphs, trace_graphs(graphs)


def as_run(graph: Graph, program: Any, way: str) -> Any:
    if way == "torch":
        return program.module()
    session = open_session(to_onnx(program, list(graph.example), graph.outputs).model_proto.SerializeToString())

    def run(*tensors: Tensor) -> list[Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in zip(graph.example, tensors, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    return run


ONNX = pytest.param("onnx", marks=pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs the extra onnx"))


WAYS = [pytest.param(*kind, "torch", marks=[] if kind == KINDS[0] else pytest.mark.slow) for kind in KINDS]
WAYS += [
    pytest.param(*kind, *ONNX.values, marks=[*ONNX.marks, pytest.mark.slow])
    for kind in dict.fromkeys([*KINDS[::3], *KINDS[-2:]])
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


@pytest.mark.parametrize("way", ["torch", ONNX])
@torch.no_grad()
def test_a_calibrated_model_has_a_graph_of_unlikeness(way: str):
    directions, _ = torch.linalg.qr(torch.randn(D, 2))
    calibration = Calibration(torch.zeros(3), torch.rand(D), directions, torch.tensor(0.5))
    model = ImageCaptioner(Grids(), small_captioner(), VOCABULARY, BeamSearch())  # type: ignore[arg-type]
    with plain_torch():
        graph = graphs_of(model.eval(), 6, calibration)["unlikeness"]
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
def test_captions_that_are_too_long_for_the_positions_are_not_exported():
    captioner = small_captioner("cross", "transformer")
    captioner.decoder.max_length = 5  # type: ignore[assignment]
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
