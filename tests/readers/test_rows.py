"""What `datasets.load_dataset` returns, written to a folder and read as one's own data set."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image as Pictures

from showattendtell.readers.custom import read_custom, write_rows


class Image:
    """Stands for `datasets.Image`: photographs are decoded or bytes."""

    def __init__(self, decode: bool = True):
        self.decode = decode


class Rows:
    """Stands for `datasets.Dataset`, in what is used of it."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]):
        self.rows, self.features = rows, features

    def cast_column(self, name: str, feature: Image) -> "Rows":
        assert not feature.decode
        return Rows(self.rows, {**self.features, name: feature})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert all(not feature.decode for feature in self.features.values() if isinstance(feature, Image))
        return (dict(row) for row in self.rows)


def picture(color: int) -> bytes:
    file = io.BytesIO()
    Pictures.new("RGB", (8, 8), (color, 9, 9)).save(file, "png")
    return file.getvalue()


def photographs(*colors: int) -> Rows:
    rows = [
        {"image": {"bytes": picture(color), "path": None}, "caption_0": f"A dog {color}", "caption_1": "It barks"}
        for color in colors
    ]
    return Rows(rows, {"image": Image(), "caption_0": None, "caption_1": None})


def test_photographs_and_captions_are_written_by_split(tmp_path: Path):
    root = write_rows({"train": photographs(1, 2), "validation": photographs(3), "test": photographs(4)}, tmp_path)
    dataset = read_custom(str(root))
    assert {split: [[c.written for c in e.captions] for e in part] for split, part in dataset.splits.items()} == {
        "train": [["A dog 1", "It barks"], ["A dog 2", "It barks"]],
        "val": [["A dog 3", "It barks"]],
        "test": [["A dog 4", "It barks"]],
    }
    assert Path(dataset.split("test")[0].path).read_bytes() == picture(4)
    again = write_rows({"train": photographs(1, 2), "validation": photographs(3), "test": photographs(4)}, tmp_path)
    assert [again] == list((tmp_path / "data_sets").iterdir()) == [root]


def test_rows_of_one_split_are_split_as_those_of_a_file(tmp_path: Path):
    sizes = []
    for rows in (photographs(*range(30)), {"train": photographs(*range(30))}):
        dataset = read_custom(str(write_rows(rows, tmp_path)))
        sizes.append([len(dataset.split(split)) for split in ("train", "val", "test")])
    assert sizes[0] == sizes[1]
    assert min(sizes[0]) > 0


def test_a_photograph_of_several_rows_is_one_image_and_a_column_of_splits_counts(tmp_path: Path):
    rows = [
        {"photo": {"bytes": picture(color), "path": None}, "text": f"Caption {number}", "split": split}
        for number, (color, split) in enumerate([(1, "train"), (1, "train"), (2, "val"), (3, "test")])
    ]
    dataset = read_custom(str(write_rows(Rows(rows, {"photo": Image(), "text": None, "split": None}), tmp_path)))
    assert [caption.written for caption in dataset.split("train")[0].captions] == ["Caption 0", "Caption 1"]
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 1, "val": 1, "test": 1}


def test_the_first_column_of_photographs_counts_and_others_are_left_out(tmp_path: Path):
    mask, photo = ({"bytes": picture(color), "path": None} for color in (2, 1))
    rows = [{"mask": mask, "photo": photo, "text": "A dog"}]
    root = write_rows(Rows(rows, {"photo": Image(), "mask": Image(), "text": None}), tmp_path)
    assert [path.read_bytes() for path in (root / "images").iterdir()] == [picture(1)]
    assert json.loads((root / "captions.jsonl").read_text()).keys() == {"image", "text"}


def test_a_photograph_may_be_a_file_and_a_name_stays_one(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(picture(1))
    rows = [{"image": {"bytes": None, "path": str(tmp_path / "a.png")}, "text": "A dog"}]
    root = write_rows(Rows(rows, {"image": Image(), "text": None}), tmp_path)
    assert [path.read_bytes() for path in (root / "images").iterdir()] == [picture(1)]
    names = Rows([{"file_name": "a.png", "text": "A dog"}], {"file_name": None, "text": None})
    assert '"file_name": "a.png"' in (write_rows(names, tmp_path) / "captions.jsonl").read_text()
