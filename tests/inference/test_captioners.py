"""What the commands that show models share, as far as it needs no model."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from detected_shapes import DIM, draw, write_detections
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from small_models import VOCABULARY, small_captioner

from showattendtell.config.compose import compose
from showattendtell.config.instantiate import build
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.errors import UserError
from showattendtell.inference.loading import BUNDLED, LoadedModel, note_about
from showattendtell.inference.pipeline import (
    CaptioningPipeline,
    caption_all,
    short_names,
    stored_regions,
    warn_of_size,
)
from showattendtell.inference.predictions import evenly_spaced
from showattendtell.types import Example


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/first/best.ckpt"], ["first/best.ckpt"]),
        (["best.ckpt"], ["best.ckpt"]),
        (["runs/a/best.ckpt", "runs/b/best.ckpt"], ["a/best.ckpt", "b/best.ckpt"]),
        (["/x/soft/1/best.ckpt", "/x/hard/1/best.ckpt"], ["soft/1/best.ckpt", "hard/1/best.ckpt"]),
        (["a/best.ckpt", "x/a/best.ckpt"], ["a/best.ckpt", "x/a/best.ckpt"]),
        (["a/best.ckpt", "a/best.ckpt"], ["a/best.ckpt", "a/best.ckpt"]),
        (["a/best.ckpt", "./b.ckpt"], ["a/best.ckpt", "b.ckpt"]),
    ],
)
def test_checkpoints_are_named_by_the_shortest_distinct_part_of_their_paths(paths: list[str], names: list[str]):
    assert short_names(paths) == names


@pytest.mark.parametrize(
    ("number", "chosen"),
    [(4, [0, 2, 5, 7]), (1, [0]), (10, list(range(10))), (99, list(range(10))), (None, list(range(10)))],
)
def test_examples_are_taken_at_equal_distances(number: int | None, chosen: list[int]):
    examples = [Example(str(place), f"{place}.jpg", ()) for place in range(10)]
    assert [int(example.image) for example in evenly_spaced(examples, number)] == chosen


def test_a_large_page_is_reported_before_it_is_made(capsys: pytest.CaptureFixture[str]):
    warn_of_size(50, "number=10 makes less")
    assert capsys.readouterr().err == ""
    warn_of_size(2000, "number=10 makes less")
    assert capsys.readouterr().err == "note: a page of 2,000 photographs has about 140 MB; number=10 makes less\n"


def test_only_the_bundled_model_has_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "mostly of people and dogs" in note_about(["runs/a/best.ckpt", BUNDLED])
    assert note_about(["runs/a/best.ckpt", "owner/flickr8k_soft"]) == ""
    (tmp_path / BUNDLED).mkdir()
    monkeypatch.chdir(tmp_path)
    assert note_about([BUNDLED]) == ""


SIZES = {"train": 2, "val": 1, "test": 2}


@pytest.fixture
def regions_config(tmp_path: Path) -> DictConfig:
    """The training configuration of a model of detected regions, with the files that it names."""
    write_detections(tmp_path / "detections.tsv", draw(tmp_path, **SIZES))
    settings = [*(f"dataset.{split}={size}" for split, size in SIZES.items()), f"dataset.root={tmp_path}/shapes"]
    settings += ["encoder=regions", f"encoder.features={tmp_path}/detections.tsv", f"encoder.dim={DIM}"]
    settings += ["encoder.max_regions=12", f"cache={tmp_path}"]
    return compose("train", settings)


def mirroring_pipeline(config: DictConfig) -> CaptioningPipeline:
    encoder = build(config.encoder)
    captioner = small_captioner(region_dim=encoder.region_dim)
    captioner.padded = True
    module = ImageCaptioner(encoder, captioner, VOCABULARY, BeamSearch(mirrored=True, max_length=5)).eval()
    return CaptioningPipeline("regions", [LoadedModel(module, config, {})])


def test_the_regions_of_a_detector_have_no_mirror_images(regions_config: DictConfig):
    dataset, command = build(regions_config.dataset), OmegaConf.create({"dataset": {}, "split": "test"})
    with pytest.raises(UserError, match=r"decoding\.mirrored needs mirror images, and regions of a detector have none"):
        stored_regions(mirroring_pipeline(regions_config), dataset, command, dataset.split("test"))


def test_stored_mirror_images_are_read_as_they_are_given(regions_config: DictConfig):
    pipeline, generator = mirroring_pipeline(regions_config), torch.Generator().manual_seed(0)
    regions, mirrors = (torch.rand(2, 12, DIM + 4, generator=generator) for _ in range(2))
    pictures = [(name, Image.new("RGB", (8, 8))) for name in "ab"]
    expected = ImageCaptionerEnsemble([pipeline.models[0].module]).generate([regions, mirrors])
    written = list(pipeline.describe(pictures, [regions, mirrors]))
    assert [one.captions[0].tokens for one in written] == [captions[0].tokens for captions in expected]
    log_probs = [captions[0].log_probs.numpy() for captions in expected]
    for one, log_p in zip(written, log_probs, strict=True):
        np.testing.assert_allclose(one.captions[0].log_probs, log_p, atol=1e-5)


class Silent:
    """A captioner that says nothing but the red of the first pixel."""

    is_deterministic = True

    def __init__(self, device: str = "cpu"):
        self.device, self.batches = torch.device(device), list[int]()

    def check_reads_pixels(self) -> None:
        pass

    def pixels(self, photograph: Image.Image) -> list[torch.Tensor]:
        return [torch.tensor(photograph.getpixel((0, 0)))]

    def describe(self, pictures: list[tuple[str, Image.Image]], images: list[torch.Tensor]) -> list[int]:
        self.batches.append(len(pictures))
        return images[0][:, 0].tolist()


@pytest.fixture
def photographs(tmp_path: Path) -> list[str]:
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file in files:
        Image.new("RGB", (8, 8)).save(file)
    return [str(file) for file in files]


def test_a_file_that_cannot_be_read_keeps_its_number_and_is_reported(photographs: list[str]):
    Path(photographs[1]).write_text("no image")
    faults: list[str] = []
    assert [number for number, _ in caption_all([Silent()], list(map(str, photographs)), faults)] == [0, 2]
    [fault] = faults
    assert "1.png cannot be read (it is text)" in fault


@pytest.mark.parametrize(("device", "batches"), [("cpu", 9 * [8] + [6]), ("cuda", [64, 14])])
def test_photographs_keep_their_order_whichever_thread_opens_them(
    device: str, batches: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("showattendtell.inference.pipeline.num_readers", lambda: 3)
    for number in range(80):
        side = 400 if number % 7 == 0 else 8  # some take longer than others
        Image.new("RGB", (side, side), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "5.png").write_text("no image")
    sources, errors, captioner = [str(tmp_path / f"{number}.png") for number in range(80)], list[str](), Silent(device)
    sources[60] = "nowhere.png"
    written = list(caption_all([captioner], sources, errors))
    assert written == [(number, [number]) for number in range(80) if number not in (5, 60)]
    assert captioner.batches == batches
    assert ["5.png cannot be read" in errors[0], "nowhere.png does not exist" in errors[1]] == [True, True]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("number", [1, 3])
def test_a_terminal_sees_how_far_several_photographs_are(
    photographs: list[str], monkeypatch: pytest.MonkeyPatch, number: int
):
    out, err = io.StringIO(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    for index, _ in caption_all([Silent()], list(map(str, photographs[:number])), []):
        print(f"photograph {index}")
    assert out.getvalue() == "".join(f"photograph {one}\n" for one in range(number))
    assert ("captioning" in err.getvalue()) == (number > 1)
    assert (f"{number}/{number}" in err.getvalue()) == ("/s" in err.getvalue()) == (number > 1)
    assert "photograph" not in err.getvalue()
