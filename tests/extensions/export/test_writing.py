"""What an export refuses, and what it leaves behind."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disks import small_disk
from slow_cases import slow_after
from small_models import small_model
from torch import nn

from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.export.checking import check_formats, compare, generated_images
from showattendtell.extensions.export.formats import (
    FORMATS,
    FormatName,
    graph_formats,
    write_formats,
    write_metadata,
)
from showattendtell.extensions.export.graphs import Graph, Pixels, graphs_of
from showattendtell.extensions.export.loading import metadata_of
from showattendtell.extensions.export.run_onnx import OnnxCaption
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.files import new_folder, write_errors

SIDE = 64


def written(model: ImageCaptioner, folder: Path, formats: list[FormatName], pixels: Pixels = "uint8") -> dict[str, Any]:
    checkpoint = folder / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    with plain_torch():
        graphs = graphs_of(model, pixels, max_length=5)
        (folder / "out").mkdir()
        return write_formats(folder / "out", graphs, formats, metadata_of(model, checkpoint, pixels, 5))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImageCaptioner, Path, dict[str, Any]]:
    """A model as a program, with pixels between 0 and 1."""
    model, folder = small_model(), tmp_path_factory.mktemp("exported")
    card = written(model, folder, ["torch"], pixels="float32")
    return model, folder / "out", card


@pytest.mark.slow
def test_programs_read_again_write_pytorchs_captions(exported: Any):
    model, folder, card = exported
    rows = check_formats(model, folder, ["torch"], card, generated_images(SIDE, 5))
    assert [(row.runner, row.method) for row in rows[:3]] == [
        ("PyTorch", "greedy"),
        ("PyTorch", "beam 3"),
        ("torch.export", "greedy"),
    ]
    assert [row.outcome.same for row in rows[2:]] == [5, 5, 5]


def test_the_card_says_what_the_graphs_take_and_give(exported: Any):
    model, folder, card = exported
    write_metadata(folder, card)
    card = json.loads((folder / "captioner.json").read_text())
    assert card["vocabulary"][card["special"]["eos"]] == "<eos>"
    assert card["checkpoint"] == {"name": "best.ckpt", "sha256": hashlib.sha256(b"weights").hexdigest()}
    for name, file in card["files"].items():
        content = (folder / name).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert set(card["files"]) == {f"torch/{name}.pt2" for name in ("encode", "begin", "step", "greedy")}
    [pixels], [regions] = card["graphs"]["encode"].values()
    assert pixels == {"name": "pixels", "shape": ["images", 3, SIDE, SIDE], "type": "float32"}
    rows, columns = card["grid"]
    assert regions["shape"] == ["images", rows * columns, model.encoder.region_dim]
    assert card["graphs"]["step"]["outputs"][0] == {"name": "log_probs", "shape": ["captions", 10], "type": "float32"}


def test_a_model_with_other_weights_is_found_out(exported: Any):
    _, folder, card = exported
    with pytest.raises(UserError, match=r"torch\.export says '.*' \(log p .*\) of image \d, and PyTorch '"):
        check_formats(small_model(seed=1), folder, ["torch"], card, generated_images(SIDE, 3))


def test_captions_that_differ_have_to_be_equally_likely():
    card = {"vocabulary": list("pseuab"), "special": {"eos": 2}}

    def caption(word: int, log_p: float, alpha: float = 0.5) -> OnnxCaption:
        return OnnxCaption([word, 2], log_p, np.full((2, 2), alpha), np.ones(2))

    own = caption(4, -5.0)
    assert compare([caption(4, -5.001)], [own], card, "this").same == 1
    assert compare([own, caption(5, -5.004)], [own, own], card, "this").same == 1
    for other in (caption(5, -5.1), caption(4, -5.1), caption(4, -5.0, alpha=0.6), caption(4, float("nan"))):
        with pytest.raises(UserError, match="this says '[ab]' .* of image 2, and PyTorch 'a'"):
            compare([own, other], [own, own], card, "this")


def test_machine_code_needs_a_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"formats=\[aoti\] needs a C\+\+ compiler; install g\+\+"):
        graph_formats(["torch", "aoti"])


@pytest.mark.parametrize("name", slow_after(1, ["torch", "onnx", "aoti"]))
def test_a_full_disk_is_reported_with_the_folder_and_leaves_nothing(tmp_path: Path, name: FormatName):
    if missing := FORMATS[name].lacks():
        pytest.skip(f"{name} needs {missing}")
    graph = Graph(nn.Linear(200, 200), (torch.ones(2, 200),), {"numbers": "images"}, ("values",), "images")
    with small_disk(tmp_path / "disk", "32k") as disk:
        with (
            pytest.raises(UserError, match=rf"{disk}/out cannot be written \(No space left on device\)"),
            new_folder(disk / "out", whole=True) as folder,
            write_errors(folder),
        ):
            write_formats(folder, {"encode": graph}, [name], {"precision": "float32"})
        assert list(disk.iterdir()) == []


class Bessel(nn.Module):
    """What ONNX has no operator for."""

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(numbers)


@pytest.mark.skipif(FORMATS["onnx"].lacks() != "", reason="needs the extra onnx")
def test_a_graph_that_a_format_cannot_hold_is_reported(tmp_path: Path):
    graphs = {"begin": Graph(Bessel(), (torch.ones(2, 3),), {"numbers": "images"}, ("values",), "images")}
    with pytest.raises(UserError, match=r"begin cannot be written as onnx \(.+\); leave onnx out of formats"):
        write_formats(tmp_path, graphs, ["onnx"], {"precision": "float32"})


@pytest.mark.slow
@pytest.mark.skipif(FORMATS["aoti"].lacks() != "", reason="needs a C++ compiler")
def test_machine_code_writes_pytorchs_captions(tmp_path: Path):
    model = small_model("adaptive")
    card = written(model, tmp_path, ["aoti"])
    rows = check_formats(model, tmp_path / "out", ["aoti"], card, generated_images(SIDE, 5))
    assert [row.outcome.same for row in rows[2:] if row.outcome] == [5, 5, 5]
