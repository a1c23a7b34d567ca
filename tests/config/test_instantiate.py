"""What a configuration may have built, and what only the code gives."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from encoders import small
from PIL import Image

from showattendtell.config.compose import as_settings, compose
from showattendtell.config.instantiate import build, build_source, find_source
from showattendtell.config.schemas import StoredSettings, TrainSettings
from showattendtell.config.validation import TRUST, TRUSTED, _installed_targets, untrusted_targets
from showattendtell.errors import UserError
from showattendtell.images.reading import open_image
from showattendtell.models.encoder import Encoder
from showattendtell.settings import Node, describe_call
from showattendtell.types import Caption, Dataset, Example


@pytest.mark.parametrize("trust", ["parts", "other, parts", "parts.Soft"])
def test_a_target_that_the_environment_trusts_is_built(parts: str, monkeypatch: pytest.MonkeyPatch, trust: str):
    monkeypatch.setenv(TRUST, trust)
    assert untrusted_targets({"attention": {"_target_": "parts.Soft"}}) == []
    assert build(Node("parts.Soft", {"score": 1}), region_dim=3).score == 1


@pytest.mark.parametrize("trust", ["", "part", "parts.Hard", "parts.Soft.made"])
def test_the_environment_trusts_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch, trust: str):
    monkeypatch.setenv(TRUST, trust)
    assert untrusted_targets({"attention": {"_target_": "parts.Soft"}}) == ["parts.Soft"]


def test_an_installed_package_is_trusted_also_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Setuptools leaves metadata in the folder that a package was built in, where those of others may lie as well."""
    for folder, name in [("site", "mine"), ("here", "mine"), ("here", "foreign")]:
        metadata = tmp_path / folder / f"{name}.egg-info"
        metadata.mkdir(parents=True)
        (metadata / "PKG-INFO").write_text(f"Name: {name}\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(f"[{TRUSTED}]\nparts = {name}.parts\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(tmp_path / "site"), str(tmp_path / "here")])
    assert {"mine.parts", "foreign.parts"} & {*_installed_targets.__wrapped__()} == {"mine.parts"}


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import notthere\nclass Soft: ...", r"\(ModuleNotFoundError: No module named 'notthere', faulty.py line 1\)$"),
        ("\nraise RuntimeError('no license')", r"\(RuntimeError: no license, faulty.py line 2\)$"),
    ],
)
def test_an_error_in_a_module_of_the_user_is_shown(
    write_module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, source: str, fault: str
):
    write_module("faulty", source)
    monkeypatch.setenv(TRUST, "faulty")
    with pytest.raises(UserError, match=r"faulty\.Soft.*" + fault):
        build(Node("faulty.Soft"))


def test_any_error_of_a_part_is_one_sentence(write_module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch):
    source = "def search(n):\n    return {}[n]\ndef refuse(n):\n    raise RuntimeError('no room')"
    write_module("strict", source)
    monkeypatch.setenv(TRUST, "strict")
    for target, sentence in {"search": "KeyError: 3", "refuse": "no room"}.items():
        with pytest.raises(UserError, match=f"^optimizer: {sentence}$"):
            build(Node(f"strict.{target}", {"n": 3}, "optimizer"))


def photographs(folder: Path) -> Dataset:
    """A good and a broken image a split."""
    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        Image.fromarray(rng.integers(0, 256, size=(70, 80, 3), dtype=np.uint8)).save(folder / f"{split}.png")
        (folder / f"{split}-broken.png").write_text("no image")
    captions = (Caption(("a", "scene")),)
    splits = {
        split: tuple(Example(name, str(folder / name), captions) for name in (f"{split}.png", f"{split}-broken.png"))
        for split in ("train", "val", "test")
    }
    return Dataset("six", splits)


def training(folder: Path, **augmentation: float) -> TrainSettings:
    composed = as_settings(compose("train", [f"cache={folder}"]))
    augment = Node("showattendtell.images.augmentation.Augmentation", augmentation)
    return replace(composed, dataset=composed.dataset.changed(skip_unreadable=True), augment=augment)


@pytest.fixture(scope="module")
def trained_encoder() -> Encoder:
    return Encoder("tf_efficientnet_lite0", 16, "random", size=64, trainable=True)


def test_the_training_images_alone_are_augmented_and_broken_ones_left_out(tmp_path: Path, trained_encoder: Encoder):
    source, dataset = build_source(training(tmp_path, flip=1.0), photographs(tmp_path), trained_encoder)
    names = {split: [example.image for example in examples] for split, examples in dataset.splits.items()}
    assert names == {"train": ["train.png"], "val": ["val.png"], "test": ["test.png"]}
    assert "images skipped: 3" in dataset.notes[0]
    plain = {split: trained_encoder.preprocessing(open_image(tmp_path / f"{split}.png")) for split in names}
    assert torch.equal(source(dataset.split("train"))([0], (0, 0))[0], plain["train"].flip(2))
    assert torch.equal(source(dataset.split("val"))([0])[0], plain["val"])


def test_evaluation_sees_images_as_they_are_and_leaves_out_what_is_broken_in_its_split(
    tmp_path: Path, trained_encoder: Encoder
):
    node = Node("showattendtell.features.extract.Extraction")
    parts = {name: Node("") for name in ("encoder", "tokenizer", "attention", "decoder")}
    config = StoredSettings(**parts, dataset=Node("", {"skip_unreadable": True}), features=node, cache=str(tmp_path))
    source, dataset = find_source(config, photographs(tmp_path), trained_encoder, "train")
    [example] = dataset.split("train")
    plain = trained_encoder.preprocessing(open_image(example.path))
    assert torch.equal(source(dataset.split("train"))([0])[0], plain)
    assert len(dataset.split("test")) == 2


def test_augmentation_of_what_a_frozen_encoder_has_stored_is_refused(tmp_path: Path):
    encoder = Encoder("tf_efficientnet_lite0", 16, "random", size=64)
    with pytest.raises(
        UserError,
        match=r"augment changes the photographs that a trained encoder sees; set encoder.trainable=true, or store",
    ):
        build_source(training(tmp_path, crop=0.5), photographs(tmp_path), encoder)


def test_workers_that_would_read_from_a_device_are_refused_before_grids_are_computed(tmp_path: Path):
    settings = ["data.cache_on_device=true", "data.num_workers=2", f"cache={tmp_path}"]
    config = as_settings(compose("train", settings))
    with pytest.raises(UserError, match=r"got data\.num_workers=2"):
        build_source(config, Dataset("none", {}), small())
    assert list(tmp_path.iterdir()) == []


def read_with_options(root: str, **options: float) -> None:
    """Stand for a reader that passes its options on."""


def test_the_options_of_a_call_are_among_its_arguments():
    called = describe_call(partial(read_with_options, "photos", val=0.2))
    assert called == {"_target_": f"{__name__}.read_with_options", "root": "photos", "val": 0.2}


def test_foreign_targets_are_found_in_nodes_and_lists_at_any_depth():
    own = {"_target_": "showattendtell.decoding.beam_search.BeamSearch"}
    node = {"decoding": own, "loss": {"parts": [own, {"_target_": "a.B", "inner": {"_target_": "c.D"}}]}}
    assert untrusted_targets(node) == ["a.B", "c.D"]
