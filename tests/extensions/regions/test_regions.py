"""Whole commands on the regions of a detector."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from detected_shapes import DIM, draw, write_detections
from extension_cases import cases
from PIL import Image
from runs import SIZES, TINY, Run, assert_done, assert_error
from slow_cases import slow_after

from showattendtell import load
from showattendtell.datamodules.datamodule import ShapesDataModule
from showattendtell.errors import UserError
from showattendtell.extensions.regions.encoder import RegionFeatures
from showattendtell.inference.checkpoints import METADATA_KEY
from showattendtell.training.module import CaptioningModule

REGIONS = ["encoder=regions", "encoder.features=detections.tsv", f"encoder.dim={DIM}", "encoder.max_regions=12"]


@pytest.fixture(scope="session")
def detections(folder: Path) -> Path:
    write_detections(folder / "detections.tsv", draw(folder / "cache", **SIZES))
    return folder / "detections.tsv"


@pytest.fixture(scope="session")
def checkpoint(run: Run, detections: Path, folder: Path) -> Path:
    prepared = assert_done(run("prepare", *TINY, *REGIONS))
    assert f"60 images x 12 x {DIM + 4} in float16" in prepared.err
    assert_done(run("train", *TINY, *REGIONS, "encoder.coordinate_scale=1", "hydra.run.dir=runs/regions"))
    return folder / "runs/regions/best.ckpt"


def test_a_model_of_regions_is_evaluated(run: Run, checkpoint: Path, folder: Path):
    metrics = "metrics=[bleu,cider,attention,faithfulness]"
    assert_done(run("evaluate", f"checkpoint={checkpoint}", metrics, "output=results.json"))
    scores = json.loads((folder / "results.json").read_text())
    for name in ("attention_correctness", "attention_coverage", "attention_rank_correlation"):
        assert math.isfinite(scores[name]), name


def test_its_page_and_pictures_show_boxes(run: Run, checkpoint: Path, folder: Path):
    done = run("caption", f"checkpoint={checkpoint}", "split=test", "output=regions.html", "decoding.max_length=5")
    assert_done(done)
    page = (folder / "regions.html").read_text(encoding="utf-8")
    boxes = re.findall(r'data-boxes="([^"]*)"', page)
    assert len(boxes) == SIZES["test"]
    assert all(4 * 4 <= len(one.split()) <= 12 * 4 for one in boxes)
    assert 'data-grid="' not in page


@pytest.mark.parametrize("command", slow_after(1, ["caption docs.png", "export formats=[onnx]", "serve port=0"]))
def test_photographs_without_stored_regions_are_refused_in_a_sentence(
    run: Run, checkpoint: Path, folder: Path, command: str
):
    Image.new("RGB", (40, 30)).save(folder / "docs.png")
    done = run(*command.split(), f"checkpoint={checkpoint}")
    assert_error(done, "detections.tsv", "the detector is not part of showattendtell", "split=test")


def test_a_checkpoint_is_loaded_without_the_file(checkpoint: Path):
    model = load(checkpoint)
    assert model.models[0].module.captioner.padded
    with pytest.raises(UserError, match="the detector is not part"):
        model("docs/figures/bird.jpg")
    state = torch.load(checkpoint, weights_only=True)
    assert not any(name.startswith("encoder.") for name in state["state_dict"])
    assert state[METADATA_KEY]["config"]["encoder"]["features"] == "detections.tsv"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    slow_after(
        1,
        [
            (["loss.supervision_weight=1"], "regions of a detector are no grid"),
            (["augment=flip"], "a trained encoder sees; leave it out"),
            (["features.views=2"], "is about grids"),
            (["encoder.dim=9"], f"give encoder.dim={DIM}"),
        ],
    ),
)
def test_what_needs_a_grid_is_refused(run: Run, detections: Path, arguments: list[str], reason: str):
    assert_error(run("train", *TINY, *REGIONS, *arguments), reason)


@pytest.mark.parametrize("kind", slow_after(1, [["attention=hard"], ["decoder=nic"], *cases("ON_REGIONS").values()]))
def test_every_kind_of_model_trains_on_regions(run: Run, detections: Path, kind: list[str], folder: Path):
    settings = [one for one in TINY if "attention" not in one or kind[0].startswith("attention")]
    place = f"runs/{kind[0].replace('=', '-')}"
    assert_done(run("train", *settings, *REGIONS, *kind, f"hydra.run.dir={place}"))
    assert (folder / place / "best.ckpt").is_file()


def test_regions_are_an_encoder_in_python(detections: Path, folder: Path):
    import pytorch_lightning as pl

    encoder = RegionFeatures(str(detections), dim=DIM, max_regions=12)
    sizes = {f"num_{split}": size for split, size in SIZES.items()}
    data = ShapesDataModule(**sizes, encoder=encoder, cache=folder / "cache")
    model = CaptioningModule(attention="soft", hidden_dim=16, embedding_dim=16)
    trainer = pl.Trainer(max_epochs=1, default_root_dir=folder / "python", logger=False, accelerator="cpu")
    trainer.fit(model, data)
    [file] = (folder / "python").rglob("*.ckpt")
    again: Any = CaptioningModule.load_from_checkpoint(file)
    assert isinstance(again.encoder, RegionFeatures)
    assert again.encoder.describe() == encoder.describe()
    assert again.captioner.padded
