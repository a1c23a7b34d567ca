"""A language model that is trained on captions alone: as the start of a captioning model, and beside one."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from repository import SHARED
from runs import TINY, Run, assert_done, assert_error

from showattendtell import load
from showattendtell.data.parsing import read_list
from showattendtell.data.shapes import compose_scene, describe_scene
from showattendtell.datamodules.datasets import open_source
from showattendtell.errors import UserError
from showattendtell.extensions.language_model.encoder import NoEncoder
from showattendtell.extensions.language_model.text import read_text
from showattendtell.features.extract import Extraction
from showattendtell.models.encoder import Encoder
from showattendtell.types import Dataset

SMALL = [setting for setting in TINY if not setting.startswith("dataset.")]
ONE_STEP = [*TINY, "trainer.limit_train_batches=1", "optimizer.lr=1e-12", "decoder.dropout=0"]
TEXT = [*SMALL, "dataset=text", "dataset.root=text", "dataset.captions=captions.token", "trainer.max_epochs=2"]


PARTS = ["attention.score.key", "decoder.context_gates", "decoder.context_output"]
PARTS += [f"decoder.first_state.{part}.0" for part in ("hidden", "cell")]
REGIONS = {f"captioner.{part}.weight" for part in PARTS}
"""The weights that read regions."""


@pytest.fixture(scope="session")
def text(folder: Path) -> Path:
    """The captions of 200 scenes that nobody has drawn."""
    place = folder / "text/captions.token"
    place.parent.mkdir()
    with place.open("w") as file:
        for number in range(200):
            rng = np.random.default_rng(number)
            said = describe_scene(compose_scene(rng), rng)
            file.writelines(f"{number}.png#{n}\t{caption.written}\n" for n, caption in enumerate(said))
    return place


@pytest.fixture(scope="session")
def language_model(run: Run, text: Path, folder: Path) -> Path:
    done = assert_done(run("train", *TEXT, "optimizer.lr=0.01", "decoder.dropout=0", "hydra.run.dir=runs/text"))
    assert "attention maps" not in done.out + done.err
    return folder / "runs/text/best.ckpt"


def read(checkpoint: Path) -> dict[str, Any]:
    return torch.load(checkpoint, weights_only=True)


def logged(run: Path, metric: str) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row[metric]) for row in csv.DictReader(file) if row[metric]]


@pytest.fixture(scope="session")
def begun(run: Run, prepared: Any, language_model: Path, folder: Path) -> Path:
    """A captioning model with the weights of the language model, in effect without a step."""
    assert_done(run("train", *ONE_STEP, f"init_from={language_model}", "hydra.run.dir=runs/from-text"))
    return folder / "runs/from-text/best.ckpt"


@pytest.mark.slow
def test_it_learns_without_photographs_and_starts_a_captioning_model(
    run: Run, language_model: Path, begun: Path, folder: Path
):
    first, last = logged(language_model.parent, "val/nll_per_word")
    assert last < first < np.log(len(read(language_model)["showattendtell"]["vocabulary"]))
    assert not (folder / "cache/features/captions").exists()
    fresh = folder / "runs/fresh/best.ckpt"
    assert_done(run("train", *ONE_STEP, f"init_vocabulary={language_model}", "hydra.run.dir=runs/fresh"))
    before, after, other = map(read, (language_model, begun, fresh))
    words = {tuple(content["showattendtell"]["vocabulary"]) for content in (before, after, other)}
    assert len(words) == 1
    for name, value in before["state_dict"].items():
        same = after["state_dict"][name].shape == value.shape
        expected = (before if same else other)["state_dict"][name]
        torch.testing.assert_close(after["state_dict"][name], expected, atol=1e-6, rtol=1e-5)
        assert same == (name not in REGIONS)
    [ours], [theirs] = (logged(each.parent, "train/nll_per_word") for each in (begun, fresh))
    assert ours < theirs - 1


@pytest.mark.slow
def test_it_is_fused_with_a_captioning_model_of_its_vocabulary(
    run: Run, language_model: Path, begun: Path, checkpoint: Path, folder: Path
):
    model = f"decoding.language_model={language_model}"
    fused = ["decoding.language_model_weight=0.5", "output=fused.json", "device=cpu", "metrics=[bleu]"]
    assert_done(run("evaluate", f"checkpoint={begun}", model, *fused))
    decoding = json.loads((folder / "fused.json").read_text())["decoding"]
    assert (decoding["language_model"], decoding["language_model_weight"]) == (str(language_model), 0.5)
    photographs = sorted((folder / "cache/shapes").glob("*/test-*.png"))[:3]
    alone, both = (load(begun, **settings) for settings in ({}, {"language_model": str(language_model)}))
    outputs = zip(alone([*photographs]), both([*photographs]), strict=True)
    assert all(one.log_prob > other.log_prob for one, other in outputs)

    assert_error(run("caption", str(photographs[0]), f"checkpoint={language_model}"), "reads no photographs")
    with pytest.raises(UserError, match=rf"different vocabularies; train the .* with init_vocabulary={checkpoint}"):
        load(checkpoint, language_model=str(language_model))
    with pytest.raises(UserError, match=r"was trained with photographs; train one with dataset=text"):
        load(checkpoint, language_model=str(checkpoint))


def write_captions(folder: Path, images: list[str]) -> None:
    lines = [f"{image}#{number}\tCaption {number} of it .\n" for image in images for number in range(2)]
    (folder / "captions.token").write_text("".join(lines))


def images_of(dataset: Dataset) -> set[str]:
    return {example.image for example in dataset.examples()}


def test_images_of_other_lists_are_left_out_by_their_number_or_stem(tmp_path: Path):
    own = [f"{number}.jpg" for number in range(100, 200)]
    write_captions(tmp_path, [*own, "dog_1.jpg", "dog_2.jpg"])
    (tmp_path / "val.txt").write_text("103_a1b2.jpg\n99_c3.jpg\n")
    (tmp_path / "test.txt").write_text("104_00.jpg\n10_105.jpg\ndog_2\n")
    dataset = read_text(str(tmp_path), "captions.token", ["val.txt", "test.txt"], val=0.2)
    assert images_of(dataset) == {*own, "dog_1.jpg"} - {"103.jpg", "104.jpg"}
    assert dataset.notes[0] == "images left out by dataset.exclude: 3"
    assert images_of(read_text(str(tmp_path), "captions.token", val=0.2)) == {*own, "dog_1.jpg", "dog_2.jpg"}


@pytest.mark.skipif(not (SHARED / "flickr30k").is_dir(), reason="needs the captions of Flickr30k in ../shared")
def test_no_validation_or_test_image_of_flickr8k_is_left_in_flickr30k():
    lists = [str(SHARED / f"flickr8k/Flickr_8k.{split}Images.txt") for split in ("dev", "test")]
    ids = {name.partition("_")[0] for file in lists for name in read_list(Path(file))}
    dataset = read_text(str(SHARED / "flickr30k"), "results_20130124.token", lists)
    left = {image.removesuffix(".jpg") for image in images_of(dataset)}
    assert len(ids) == 2000
    assert not left & ids
    assert len(left) == 31_783 - 2_000
    assert dataset.notes[0] == "images left out by dataset.exclude: 2,000"
    assert {len(example.captions) for example in dataset.examples()} == {5}


def test_splits_are_those_of_the_file_or_a_hash_and_lines_are_captions(tmp_path: Path):
    (tmp_path / "own.csv").write_text("image,caption,split\na.jpg,A dog.,train\nb.jpg,A cat.,val\n")
    dataset = read_text(str(tmp_path), "own.csv")
    assert {split: [example.image for example in each] for split, each in dataset.splits.items()} == {
        "train": ["a.jpg"],
        "val": ["b.jpg"],
    }
    (tmp_path / "lines.txt").write_text("".join(f"Sentence number {number}.\n" for number in range(100)))
    dataset = read_text(str(tmp_path), "lines.txt", val=0.1, test=0.1)
    assert dataset.splits.keys() == {"train", "val", "test"}
    assert {example.captions[0].words for example in dataset.examples()} == {
        ("sentence", "number", str(number)) for number in range(100)
    }


def test_no_photograph_is_read_and_no_grid_is_stored(tmp_path: Path):
    write_captions(tmp_path, [f"{number}.jpg" for number in range(60)])
    dataset = read_text(str(tmp_path), "captions.token", val=0.2)
    source, readable = open_source(dataset, NoEncoder(), tmp_path / "features", Extraction(views=2))
    assert readable is dataset
    assert source(dataset.split("train"), "drawn")([3, 1], (2, 5)).tolist() == [[[0.0]], [[0.0]]]
    assert not (tmp_path / "features").exists()
    encoder = Encoder("test_efficientnet", "last", "random", size=64)
    with pytest.raises(UserError, match="captions has captions without photographs; give encoder=none"):
        open_source(dataset, encoder, tmp_path / "features", Extraction())
