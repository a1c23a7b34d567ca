"""Captions, splits and folders as they should not be: each kind is reported in one sentence."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from showattendtell.errors import UserError
from showattendtell.readers.coco import read_coco, read_coco2017
from showattendtell.readers.custom import read_custom
from showattendtell.readers.flickr import read_flickr8k, read_flickr30k

ROWS = "image,caption,split\na.jpg,A dog .,train\nb.jpg,Two cats .,val\nc.jpg,A cow .,test\n"
TOKENS = "a.jpg#0\tA dog .\nb.jpg#0\tTwo cats .\nc.jpg#0\tA cow .\n"
LISTS = {"train.txt": "a\n", "val.txt": "b\n", "test.txt": "c\n"}
SPLITS = {"a": "train", "b": "val", "c": "test"}
ENTRIES = [
    {"filename": f"{name}.jpg", "filepath": "val2014", "split": split, "sentences": [{"raw": "A dog ."}]}
    for name, split in SPLITS.items()
]
LINES = [{"image": f"{name}.jpg", "caption": "A dog .", "split": split} for name, split in SPLITS.items()]
COCO: dict[str, Any] = {
    "images": [{"id": number, "file_name": f"{name}.jpg"} for number, name in enumerate("abc")],
    "annotations": [{"image_id": number, "caption": "A dog ."} for number in range(3)],
}


class Kind(NamedTuple):
    """A fault: what is done to the folder, how it is read then, and words of its error message."""

    spoil: Callable[[Path], Any]
    words: str
    read: Callable[..., Any] = read_custom
    settings: Mapping[str, Any] = MappingProxyType({})


def text(name: str, content: str, encoding: str = "utf-8") -> Callable[[Path], Any]:
    return lambda root: (root / name).write_text(content, encoding, newline="")


def rows(*lines: str) -> Callable[[Path], Any]:
    return text("captions.csv", "\n".join(["image,caption,split", *lines]))


def karpathy(*entries: Any) -> Callable[[Path], Any]:
    return text("dataset_coco.json", json.dumps({"images": entries}))


def coco(name: str = "captions.json", **changes: Any) -> Callable[[Path], Any]:
    return text(name, json.dumps({**COCO, **changes}))


def gone(*names: str) -> Callable[[Path], Any]:
    return lambda root: [(root / name).unlink() for name in names]


def both(*spoils: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda root: [spoil(root) for spoil in spoils]


def texts(*stems: str) -> Callable[[Path], Any]:
    """Text files next to the images, instead of the table."""

    def spoil(root: Path) -> None:
        gone(*CAPTION_FILES)(root)
        for stem in stems:
            (root / "images" / f"{stem}.txt").write_text("A dog .")

    return spoil


CAPTION_FILES = ("captions.csv", "results_20130124.token", "dataset_coco.json")
JSON_FILE = {"captions": "captions.json"}
LISTED = {"captions": "results_20130124.token", "splits": "."}

KINDS = {
    # captions: the file itself
    "a file that does not exist": Kind(both(), "said.csv does not exist", settings={"captions": "said.csv"}),
    "latin-1": Kind(text("captions.csv", ROWS.replace("cow", "café"), "latin-1"), r"is not UTF-8 text \(byte"),
    "UTF-16 without its mark": Kind(text("captions.csv", ROWS, "utf-16-le"), "is not UTF-8 text .* is NUL"),
    "two files to choose from": Kind(
        text("captions.json", "{}"), "has captions.csv and captions.json; choose one with"
    ),
    # captions: their columns and lines
    "a comma in a caption": Kind(rows("a.jpg,A dog , and a cat .,train"), "line 2: 4 cells in 3 columns"),
    "a quote that does not close": Kind(rows('a.jpg,"A dog .,train'), "captions.csv, line 2: a quote does not close"),
    "a row without an image": Kind(rows(",A dog .,train"), "line 2: the column image is empty"),
    "plain lines": Kind(
        text("captions.txt", "A dog .\nA cat .\n"), "names no images", settings={"captions": "captions.txt"}
    ),
    "a model's captions": Kind(
        text("captions.json", json.dumps({"captions": {"a.jpg": "a dog"}, "references": {"a.jpg": ["A dog ."]}})),
        "holds a model's captions",
        settings=JSON_FILE,
    ),
    # images within the captions
    "a caption of an unknown image": Kind(
        coco(annotations=[{"image_id": 7, "caption": "A dog ."}]), "has a caption for image 7", settings=JSON_FILE
    ),
    "an absolute path to no photograph": Kind(rows("/etc/z.jpg,A dog .,train"), "images/etc/z.jpg; unpack or copy"),
    "a caption without end": Kind(rows(f"a.jpg,{'dog ' * 1001},train"), "image a.jpg has a caption of 1,001 words"),
    "a path that leads out": Kind(rows("../../z.jpg,A dog .,train"), "images/z.jpg; unpack or copy"),
    "an image listed twice": Kind(
        coco(images=[*COCO["images"], COCO["images"][0]]), "image 0 is listed more than once", settings=JSON_FILE
    ),
    # splits
    "a leak between Karpathy's splits": Kind(
        karpathy(*ENTRIES, {**ENTRIES[0], "split": "test"}), "a.jpg is listed more than once", read_coco
    ),
    "a leak between lists": Kind(
        text("test.txt", "a\nc\n"), r"a.jpg is listed more than once \(train, test\)", read_flickr30k
    ),
    "a list that names an unknown image": Kind(
        both(
            *(text(name, f"{list_text.strip()}.jpg\n") for name, list_text in LISTS.items()),
            text("train.txt", "a.jpg\nz.jpg\n"),
        ),
        r"train.txt names images without captions: 1 \(z.jpg\)",
        settings=LISTED,
    ),
    "no lists at all": Kind(both(), "has no lists train.txt, val.txt and test.txt", settings={"splits": "images"}),
    "shares that leave nothing": Kind(
        both(gone(*LISTS), coco()), "leave no images to train on", settings={**JSON_FILE, "val": 0.6, "test": 0.5}
    ),
    # folders and the images in them
    "an image that is missing": Kind(gone("images/a.jpg"), "captioned but not on disk: 1, the first is"),
    "a pipe in an image's place": Kind(
        both(gone("images/a.jpg"), lambda root: os.mkfifo(root / "images/a.jpg")), "captioned but not on disk: 1"
    ),
    "COCO's captions missing": Kind(both(), "the caption file .* was not found in", read_coco2017),
    "Flickr8k's captions missing": Kind(
        gone(*CAPTION_FILES),
        "the captions were not found in .*: Flickr8k.token.txt is neither there nor in Flickr8k_text",
        read_flickr8k,
    ),
    "an image without its text": Kind(
        texts("a", "b"), r"images without a caption: 1 of \d \(c.jpg\)", settings={"val": 0, "test": 0}
    ),
    "two images with one text": Kind(
        both(texts("a", "b", "c"), text("images/a.png", "")), "a.jpg and a.png in .* share the captions"
    ),
    "a file name that is not UTF-8": Kind(
        both(texts("a", "b", "c"), lambda root: (root / os.fsdecode(b"images/\xff.jpg")).touch()),
        "the name of the image .* is not UTF-8; rename it",
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three images with captions and splits, as a table, as Flickr30k, and as Karpathy has COCO."""
    (tmp_path / "images").mkdir()
    for name in "abc":
        (tmp_path / "images" / f"{name}.jpg").touch()
    (tmp_path / "captions.csv").write_text(ROWS)
    (tmp_path / "results_20130124.token").write_text(TOKENS)
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": ENTRIES}))
    for name, listed in LISTS.items():
        (tmp_path / name).write_text(listed)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_fault_is_reported_in_one_sentence(root: Path, kind: Kind):
    kind.spoil(root)
    with pytest.raises(UserError, match=kind.words) as error:
        kind.read(str(root), **kind.settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "fault"), [("nowhere", "does not exist"), ("train.txt", "is a file, not a folder")])
@pytest.mark.parametrize("read", [read_custom, read_coco, read_coco2017, read_flickr8k, read_flickr30k])
def test_a_root_that_is_no_folder_is_reported(root: Path, read: Callable[..., Any], name: str, fault: str):
    with pytest.raises(UserError, match=rf"{name} {fault}; set dataset.root to the folder that holds "):
        read(str(root / name))


@pytest.mark.parametrize(
    "accepted",
    [
        text("captions.csv", ROWS, "utf-8-sig"),
        text("captions.csv", ROWS, "utf-16"),
        text("captions.csv", "sep=;\r\n" + ROWS.replace("\n", "\r\n").replace(",", ";")),
        text("captions.csv", ROWS.replace("\n", "\r\n\r\n"), "utf-8-sig"),
        text("captions.csv", ROWS.replace(",", ", ").replace("train", "train ")),
        both(
            gone("captions.csv"),
            text("captions.jsonl", "\r\n".join(map(json.dumps, LINES)), "utf-8-sig"),
        ),
        both(gone("captions.csv"), text("captions.json", json.dumps({"images": ENTRIES}), "utf-8-sig")),
    ],
)
def test_marks_line_ends_and_delimiters_of_other_programs_are_taken(root: Path, accepted: Callable[[Path], Any]):
    accepted(root)
    (root / "val2014").symlink_to("images")
    dataset = read_custom(str(root), images="." if (root / "captions.json").exists() else None)
    assert {e.image[0]: split for split, examples in dataset.splits.items() for e in examples} == SPLITS
