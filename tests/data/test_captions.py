import json
from pathlib import Path
from typing import Any

import pytest

from showattendtell.data.captions import assemble, read_karpathy, read_list, read_token_file
from showattendtell.errors import UserError
from showattendtell.records import Caption, Example

TOKENS = "a.jpg#0\tA dog .\na.jpg#1\tIt barks !\nb.jpg#0\tTwo cats .\n"


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding, newline="")
    return path


def entry(**changes: Any) -> dict[str, Any]:
    """An image as Karpathy's JSON has it; a change to None leaves the field out."""
    fields = {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A dog ."}], **changes}
    return {name: value for name, value in fields.items() if value is not None}


def test_a_token_file_gives_the_sentences_of_each_image_in_order(tmp_path: Path):
    sentences = read_token_file(write(tmp_path / "tokens.txt", TOKENS))
    assert sentences == {"a.jpg": ["A dog .", "It barks !"], "b.jpg": ["Two cats ."]}


@pytest.mark.parametrize(
    ("end", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-8"), ("\n\n", "utf-8"), ("\n", "utf-8-sig")]
)
def test_windows_line_ends_blank_lines_and_a_byte_order_mark_change_nothing(tmp_path: Path, end: str, encoding: str):
    plain = read_token_file(write(tmp_path / "plain.txt", TOKENS))
    assert read_token_file(write(tmp_path / "other.txt", TOKENS.replace("\n", end), encoding)) == plain


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1c"])
def test_only_line_feeds_end_a_caption(tmp_path: Path, mark: str):
    path = write(tmp_path / "tokens.txt", TOKENS.replace("A dog", f"A{mark}dog"))
    assert read_token_file(path)["a.jpg"] == [f"A{mark}dog .", "It barks !"]


def test_an_image_name_may_contain_the_mark_before_the_number(tmp_path: Path):
    assert read_token_file(write(tmp_path / "tokens.txt", "a#1.jpg#0\tA dog .\n")) == {"a#1.jpg": ["A dog ."]}


@pytest.mark.parametrize(
    "line", ["b.jpg#0 Two cats .", "b.jpg\tTwo cats .", "b.jpg#x\tTwo cats .", "#0\tTwo cats .", "b.jpg#0\t ", "\tcats"]
)
def test_a_malformed_caption_line_is_told_with_its_number(tmp_path: Path, line: str):
    path = write(tmp_path / "tokens.txt", f"a.jpg#0\tA dog .\n\n{line}\n")
    with pytest.raises(UserError, match=r"tokens.txt, line 3: expected 'name.jpg#0<TAB>caption', got '") as told:
        read_token_file(path)
    assert str(told.value).endswith(f"'{line}'")


def test_a_split_list_is_a_name_a_line(tmp_path: Path):
    assert read_list(write(tmp_path / "list.txt", "a.jpg\r\n\r\n b.jpg\nc d.jpg")) == ["a.jpg", "b.jpg", "c d.jpg"]


def test_a_text_file_that_is_missing_is_told(tmp_path: Path):
    with pytest.raises(UserError, match=r"nowhere.txt does not exist"):
        read_list(tmp_path / "nowhere.txt")


def test_a_folder_in_a_text_file_s_place_is_told(tmp_path: Path):
    with pytest.raises(UserError, match=r"is a folder, a file was expected"):
        read_list(tmp_path)


def test_text_that_is_not_utf_8_is_told_with_the_byte(tmp_path: Path):
    path = write(tmp_path / "tokens.txt", "a.jpg#0\tA caf\u00e9 .\n", encoding="latin-1")
    with pytest.raises(UserError, match=r"tokens.txt is not UTF-8 text \(byte 13\); convert it to UTF-8"):
        read_token_file(path)


def test_karpathy_s_json_gives_sentences_by_image_and_images_by_split(tmp_path: Path):
    entries = [entry(), entry(filename="b.jpg", split="val", sentences=[{"raw": "Two cats ."}, {"raw": "Cats ."}])]
    path = write(tmp_path / "dataset.json", json.dumps({"images": entries, "dataset": "flickr8k"}))
    sentences, splits = read_karpathy(path)
    assert sentences == {"a.jpg": ["A dog ."], "b.jpg": ["Two cats .", "Cats ."]}
    assert splits == {"train": ["a.jpg"], "val": ["b.jpg"]}


@pytest.mark.parametrize("text", ["", "{,}", '{"images": ['])
def test_a_file_that_is_not_json_is_told_with_the_line(tmp_path: Path, text: str):
    with pytest.raises(UserError, match=r"dataset.json is not JSON \(.+ at line 2 column \d+\); export it again"):
        read_karpathy(write(tmp_path / "dataset.json", f"\n{text}"))


@pytest.mark.parametrize("field", ["filename", "split", "sentences"])
def test_an_image_of_karpathy_s_json_that_lacks_a_field_is_told(tmp_path: Path, field: str):
    path = write(tmp_path / "dataset.json", json.dumps({"images": [entry(**{field: None})]}))
    with pytest.raises(UserError, match=rf"dataset.json is not in Karpathy's layout: images\.0\.{field}: "):
        read_karpathy(path)


def test_a_sentence_of_karpathy_s_json_without_its_text_is_told(tmp_path: Path):
    path = write(tmp_path / "dataset.json", json.dumps({"images": [entry(sentences=[{"tokens": ["a"]}])]}))
    with pytest.raises(UserError, match=r"is not in Karpathy's layout: images\.0\.sentences\.0\.raw: field required"):
        read_karpathy(path)


@pytest.mark.parametrize(
    "content",
    [
        [1],
        None,
        7,
        "images",
        {"images": None},
        {"images": {"a.jpg": 1}},
        {"images": ["a.jpg"]},
        {"images": [entry(filename=["a.jpg"])]},
        {"images": [entry(filename=5)]},
        {"images": [entry(sentences=[{"raw": 5}])]},
        {"images": [entry(sentences=["A dog ."])]},
    ],
)
def test_json_of_another_layout_is_told_without_python_s_words(tmp_path: Path, content: Any):
    with pytest.raises(UserError, match="dataset.json is not in Karpathy's layout") as told:
        assemble(*read_karpathy(write(tmp_path / "dataset.json", json.dumps(content))), tmp_path, 5)
    assert not any(phrase in str(told.value) for phrase in ("indices", "subscriptable", "iterable", "unhashable"))


def test_examples_hold_tokenized_captions_and_the_path_of_the_image():
    examples = assemble(
        {"a.jpg": [" A dog .\r", "It barks !"]}, {"val": ["a.jpg"]}, Path("folder"), captions_per_image=5
    )
    captions = (Caption(("a", "dog"), written="A dog ."), Caption(("it", "barks"), written="It barks !"))
    assert examples == {"val": (Example("a.jpg", str(Path("folder", "a.jpg")), captions),)}


def test_captions_beyond_the_number_are_dropped():
    examples = assemble({"a.jpg": list("abcdefg")}, {"train": ["a.jpg"]}, Path(), captions_per_image=5)
    assert [caption.words for caption in examples["train"][0].captions] == [("a",), ("b",), ("c",), ("d",), ("e",)]


@pytest.mark.parametrize("sentences", [{}, {"a.jpg": []}, {"a.jpg": ["..."]}, {"b.jpg": ["A dog ."]}])
def test_an_image_without_a_caption_is_told(sentences: dict[str, list[str]]):
    with pytest.raises(UserError, match=r"image a.jpg stands in a split list but has no caption"):
        assemble(sentences, {"train": ["a.jpg"]}, Path(), 5)
