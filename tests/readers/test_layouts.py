"""Data sets as people have them: every layout gives the same photographs and captions."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from showattendtell.errors import UserError
from showattendtell.images.names import GET_SPLITS
from showattendtell.readers.custom import read_custom
from showattendtell.readers.flickr import read_flickr8k, read_flickr30k
from showattendtell.types import Dataset

SAID = {f"{number}00_{number}a.jpg": [f"A dog , number {number} .", f"Cat {number} ."] for number in range(1, 7)}
SPLIT = dict(zip(SAID, ["train", "train", "train", "train", "val", "test"], strict=True))
PAIRS = [(image, caption) for image, captions in SAID.items() for caption in captions]


def put(folder: Path, rename: Callable[[str], str] = str) -> None:
    """Photographs; nothing reads their content."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in SAID:
        (folder / rename(image)).touch()


def table(path: Path, header: list[str], rows: Any, delimiter: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([*([header] if header else []), *rows])


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def of_split(split: str) -> list[tuple[str, str]]:
    return [(image, caption) for image, caption in PAIRS if SPLIT[image] == split]


def kaggle_flickr8k(root: Path) -> None:
    put(root / "Images")
    table(root / "captions.txt", ["image", "caption"], PAIRS)


def kaggle_flickr30k(root: Path) -> None:
    """One line of the published file lacks a delimiter."""
    put(root / "flickr30k_images/flickr30k_images")
    lines = [f"{image}| {SAID[image].index(caption)}| {caption}" for image, caption in PAIRS]
    lines[5] = lines[5].replace("| 1| ", "| 1   ")
    write(root / "flickr30k_images/results.csv", "\n".join(["image_name| comment_number| comment", *lines]))


def imagefolder(root: Path) -> None:
    put(root)
    table(root / "metadata.csv", ["file_name", "text"], PAIRS)


def imagefolder_of_splits(root: Path) -> None:
    for split, folder in {"train": "train", "val": "validation", "test": "test"}.items():
        for image, _ in of_split(split):
            (root / folder).mkdir(exist_ok=True)
            (root / folder / image).touch()
        lines = [json.dumps({"file_name": image, "text": caption}) for image, caption in of_split(split)]
        write(root / folder / "metadata.jsonl", "\n".join(lines))


def folders_of_splits(root: Path) -> None:
    """One table of bare names; only the folders of the photographs say the splits."""
    for image in SAID:
        (root / SPLIT[image]).mkdir(exist_ok=True)
        (root / SPLIT[image] / image).touch()
    table(root / "captions.csv", ["image", "caption"], PAIRS)


def kohya(root: Path) -> None:
    put(root / "img/10_dog")
    for image, captions in SAID.items():
        write((root / "img/10_dog" / image).with_suffix(".caption"), "\n".join(captions))


def texts_apart(root: Path) -> None:
    put(root / "images")
    for image, captions in SAID.items():
        write((root / "labels" / image).with_suffix(".txt"), "\n".join(captions))


def vizwiz(root: Path) -> None:
    """A rejected caption is none, and the test split has no captions."""
    for split in ("train", "val", "test"):
        names = [image for image in SAID if SPLIT[image] == split]
        (root / split).mkdir()
        for image in names:
            (root / split / image).touch()
        images = [{"id": number, "file_name": image, "vizwiz_url": "https://"} for number, image in enumerate(names)]
        said = [
            {"image_id": number, "caption": caption, "is_rejected": False}
            for number, image in enumerate(names)
            for caption in SAID[image]
        ]
        said.append({"image_id": 0, "caption": "Quality issues are too severe.", "is_rejected": True})
        content = {"images": images} if split == "test" else {"images": images, "annotations": said}
        write(root / f"annotations/{split}.json", content)


def karpathy(root: Path) -> None:
    put(root / "Flicker8k_Dataset")
    entries = [
        {"filename": image, "split": SPLIT[image], "imgid": number, "sentences": [{"raw": text} for text in captions]}
        for number, (image, captions) in enumerate(SAID.items())
    ]
    write(root / "dataset_flickr8k.json", {"images": entries, "dataset": "flickr8k"})


def tables(*, header: tuple[str, str] = ("image", "caption"), name: str = "captions.csv", **options: Any) -> Any:
    """A table whose names differ from those of the photographs."""
    folder, on_disk = options.pop("folder", "images"), options.pop("on_disk", str)
    written = options.pop("written", str)

    def build(root: Path) -> None:
        put(root / folder, on_disk)
        table(root / name, [*header], [(written(image), caption) for image, caption in PAIRS], **options)

    return build


def as_json(content: Any, name: str = "captions.json") -> Callable[[Path], None]:
    def build(root: Path) -> None:
        put(root / "photos")
        write(root / name, content)

    return build


RECORDS = [{"Image_Name": image, "Caption": caption} for image, caption in PAIRS]
LAYOUTS: dict[str, Callable[[Path], None]] = {
    **{"Kaggle's Flickr8k": kaggle_flickr8k, "Kaggle's Flickr30k": kaggle_flickr30k, "imagefolder": imagefolder},
    **{"imagefolder of splits": imagefolder_of_splits, "kohya": kohya, "texts apart": texts_apart},
    **{"VizWiz": vizwiz, "Karpathy's": karpathy, "folders of splits": folders_of_splits},
    "columns in any case": tables(header=("Image Name", "CAPTION")),
    "columns of other names": tables(header=("Photo", "description")),
    "a file of any name": tables(name="My Sheet.tsv", delimiter="\t"),
    "photographs in another folder": tables(folder="my photos/2020"),
    "names with their folder": tables(written=lambda image: f"images/{image}"),
    "names of another machine": tables(written=lambda image: f"/content/drive/images/{image}"),
    "names of Windows": tables(written=lambda image: f"C:\\me\\images\\{image}"),
    "names without suffix": tables(written=lambda image: image[:-4]),
    "names of another suffix": tables(on_disk=lambda image: f"{image[:-4]}.PNG"),
    "names of another case": tables(on_disk=str.upper),
    "names with a caption's number": tables(written=lambda image: f"{image}#0"),
    "numbers": tables(
        header=("image_id", "caption"), written=lambda image: image[0], on_disk=lambda i: f"x_00{i[0]}.jpg"
    ),
    "no header": lambda root: (put(root), table(root / "captions.txt", [], PAIRS, "\t"))[0],
    "commas without quotes": lambda root: (
        put(root),
        write(root / "captions.csv", "image,caption\n" + "".join(f"{i},{c.replace(' ,', ',')}\n" for i, c in PAIRS)),
    )[0],
    "captions by image": as_json(SAID),
    "captions in the images": as_json({"images": [{"filename": i, "captions": said} for i, said in SAID.items()]}),
    "names of Label Studio": tables(written=lambda image: f"/data/upload/1/0a1b2c3d-{image}"),
    "objects by image": as_json({image: [{"caption": caption} for caption in said] for image, said in SAID.items()}),
    "records in a field": as_json({"version": 1, "annotations": RECORDS}),
    "a list in a cell": lambda root: (
        put(root),
        table(root / "captions.csv", ["raw", "filename"], [(json.dumps(said), image) for image, said in SAID.items()]),
    )[0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_found_by_itself(tmp_path: Path, layout: str):
    LAYOUTS[layout](tmp_path)
    dataset = read_custom(str(tmp_path))
    said = {Path(e.path).name.lower(): [caption.words for caption in e.captions] for e in dataset.examples()}
    expected = {
        image: [tuple(caption.lower().replace(",", "").replace(".", "").split()) for caption in captions]
        for image, captions in SAID.items()
        if layout != "VizWiz" or SPLIT[image] != "test"
    }
    assert sorted(said.values()) == sorted(expected.values())
    assert all(Path(example.path).is_file() for example in dataset.examples())


@pytest.mark.parametrize("layout", ["imagefolder of splits", "Karpathy's", "folders of splits"])
def test_the_splits_of_a_layout_are_kept(tmp_path: Path, layout: str):
    LAYOUTS[layout](tmp_path)
    splits = read_custom(str(tmp_path)).splits
    assert {split: sorted(Path(e.path).name for e in part) for split, part in splits.items()} == {
        split: [image for image in SAID if SPLIT[image] == split] for split in ("train", "val", "test")
    }


@pytest.mark.parametrize(
    ("read", "layout"), [(read_flickr8k, "Kaggle's Flickr8k"), (read_flickr30k, "Kaggle's Flickr30k")]
)
def test_without_splits_flickr_s_come_from_a_hash_and_the_way_to_get_them_is_named(
    tmp_path: Path, read: Callable[[str], Dataset], layout: str
):
    LAYOUTS[layout](tmp_path)
    dataset = read(str(tmp_path))
    assert sum(len(example.captions) for example in dataset.examples()) == len(PAIRS)
    fetch = f"put the public splits, dataset_{dataset.name}.json, into {tmp_path}: {GET_SPLITS}"
    assert any(note.endswith(fetch) for note in dataset.notes)


@pytest.mark.parametrize("parts", [[kaggle_flickr8k, karpathy], [karpathy]])
def test_karpathy_s_splits_are_taken_next_to_kaggle_s_captions_and_alone(tmp_path: Path, parts: list[Any]):
    for part in parts:
        part(tmp_path)
    assert {split: len(part) for split, part in read_flickr8k(str(tmp_path)).splits.items()} == {
        **{"train": 4, "val": 1, "test": 1}
    }


def test_a_photograph_of_another_folder_is_no_substitute(tmp_path: Path):
    for place in ("cat", "dog"):
        put(tmp_path / place)
    names = [f"{place}/{image}" for place in ("cat", "dog") for image in SAID]
    table(tmp_path / "captions.csv", ["image", "caption"], [(name, "A dog .") for name in names])
    (tmp_path / "cat/100_1a.jpg").unlink()
    with pytest.raises(UserError, match=r"not on disk: 1, the first is .*cat/100_1a.jpg"):
        read_custom(str(tmp_path))


def test_training_without_validation_images_takes_some_and_says_so(tmp_path: Path):
    put(tmp_path)
    rows = [(image, caption, "test" if SPLIT[image] == "test" else "train") for image, caption in PAIRS]
    table(tmp_path / "captions.csv", ["image", "caption", "split"], rows)
    dataset = read_custom(str(tmp_path))
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 4, "test": 1, "val": 1}
    assert dataset.notes == ("there is no validation split, so a hash of the names takes some of the training images",)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone.jpg")


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda root: (put(root), (root / "sheet.xlsx").touch()),
            r"if they are in .*own/sheet.xlsx, save them as captions.csv \(in Excel: CSV UTF-8, in Python: to_csv",
        ),
        (put, "no captions were found in .*dataset.captions="),
        (lambda root: write(root / "images.zip", "x"), "holds no images; unpack them, or set dataset.images"),
        (
            tables(header=("bild", "text")),
            "captions.csv, line 1 has the columns bild,text; name that of the images image",
        ),
        (tables(written=lambda image: "z.jpg"), "fewer images than splits, so none is left for train; add images$"),
        (
            lambda root: (write(root / "images.zip", "x"), table(root / "captions.csv", ["image", "caption"], PAIRS)),
            r"none of the 6 images are on disk, .*; unpack or copy them to .*own, or set dataset.images to their",
        ),
        (
            lambda root: (tables()(root), link_to_nothing(root / "images/100_1a.jpg")),
            "the first is .*own/images/100_1a.jpg, a link to a file that does not exist; add them",
        ),
    ],
)
def test_what_stops_a_layout_is_said_in_one_sentence(tmp_path: Path, build: Callable[[Path], Any], sentence: str):
    (tmp_path / "own").mkdir()
    build(tmp_path / "own")
    with pytest.raises(UserError, match=sentence):
        read_custom(str(tmp_path / "own"))


def test_a_split_without_images_is_reported_with_the_folder_and_the_setting(tmp_path: Path):
    put(tmp_path)
    table(tmp_path / "captions.csv", ["image", "caption"], PAIRS[:2])
    with pytest.raises(UserError, match="so none is left for (train|val); add images$"):
        read_custom(str(tmp_path), test=0)
    table(tmp_path / "captions.csv", ["image", "caption"], PAIRS)
    dataset = read_custom(str(tmp_path), val=0)
    message = f"{tmp_path} has no split 'val'; list images for it, or with dataset=custom set dataset.val above 0"
    with pytest.raises(UserError, match=f"^{message}$"):
        dataset.split("val")
