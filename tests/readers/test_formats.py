import json
from pathlib import Path

import pytest

from showattendtell.readers.formats import PLAIN, read_captions
from showattendtell.text.parsing import CaptionFile

TOKENS = "a.jpg#0\tA dog .\na.jpg#1\tIt barks !\nb.jpg#0\tTwo cats .\n"


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding, newline="")
    return path


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1c"])
def test_only_line_feeds_end_a_caption(tmp_path: Path, mark: str):
    path = write(tmp_path / "tokens.txt", TOKENS.replace("A dog", f"A{mark}dog"))
    assert read_captions(path).captions["a.jpg"] == [f"A{mark}dog .", "It barks !"]


def test_plain_lines_are_an_image_each_also_where_they_are_empty(tmp_path: Path):
    file = read_captions(write(tmp_path / "written.txt", "a dog\n\ntwo cats\n"))
    assert file == CaptionFile(PLAIN, {"line 1": ["a dog"], "line 2": [""], "line 3": ["two cats"]})


@pytest.mark.parametrize(
    "text",
    [
        'image,caption\na.jpg,A dog .\na.jpg,"A dog , and a cat ."\nb.jpg,\n',
        "number\timage\tcaption\n1\ta.jpg\tA dog .\n2\ta.jpg\tA dog , and a cat .\n3\tb.jpg\t\n",
        'caption;image\n"A dog .";a.jpg\n"A dog , and a cat .";a.jpg\n;b.jpg\n',
        'file,caption,log_prob\na.jpg,A dog .,-1\na.jpg,"A dog , and a cat .",-2\nb.jpg,,-3\n',
        '"image", "caption"\r\n"a.jpg", "A dog ."\r\n\r\n"a.jpg", "A dog , and a cat ."\r\n"b.jpg", ""\r\n',
    ],
)
def test_a_table_may_have_its_columns_in_any_order_and_others_too(tmp_path: Path, text: str):
    file = read_captions(write(tmp_path / "captions.csv", text))
    assert file.captions == {"a.jpg": ["A dog .", "A dog , and a cat ."], "b.jpg": [""]}


@pytest.mark.parametrize(
    "text", ['image,caption\na.jpg,"A ""stop""\nsign ."\n', 'caption,image\n"A ""stop""\nsign .",a.jpg\n']
)
def test_a_quoted_cell_may_hold_quotes_and_line_breaks(tmp_path: Path, text: str):
    assert read_captions(write(tmp_path / "captions.csv", text)).captions == {"a.jpg": ['A "stop"\nsign .']}


COCO = {
    "images": [{"id": 7, "file_name": "b.jpg"}, {"id": 5, "file_name": "a.jpg"}, {"id": 9}],
    "annotations": [
        {"image_id": 5, "caption": "A dog ."},
        {"image_id": 7, "caption": "Two cats ."},
        {"image_id": 5, "caption": "It barks !"},
    ],
}


def test_coco_s_captions_are_named_after_files_and_their_numbers_are_aliases(tmp_path: Path):
    file = read_captions(write(tmp_path / "captions.json", json.dumps(COCO)))
    assert list(file.captions.items()) == [("b.jpg", ["Two cats ."]), ("a.jpg", ["A dog .", "It barks !"]), ("9", [])]
    assert file.aliases == {"7": "b.jpg", "5": "a.jpg"}


@pytest.mark.parametrize(
    ("numbers", "aliases"), [({}, {}), ({"imgid": 0}, {"0": "a.jpg"}), ({"imgid": 0, "cocoid": 5}, {"5": "a.jpg"})]
)
def test_an_image_of_karpathy_s_json_is_also_called_by_its_number(
    tmp_path: Path, numbers: dict[str, int], aliases: dict[str, str]
):
    entry = {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A dog ."}], **numbers}
    path = write(tmp_path / "dataset.json", json.dumps({"images": [entry]}))
    assert read_captions(path).aliases == aliases


def test_results_of_evaluation_have_the_model_s_captions_and_annotators_s(tmp_path: Path):
    content = {"bleu4": 20.0, "captions": {"a.jpg": "a dog"}, "references": {"a.jpg": ["A dog .", "It barks !"]}}
    file = read_captions(write(tmp_path / "results-test.json", json.dumps(content)))
    assert (file.captions, file.references) == ({"a.jpg": ["a dog"]}, {"a.jpg": ["A dog .", "It barks !"]})


@pytest.mark.parametrize("cell", ["['A dog', \"It's one\"]", '["A dog", "It\'s one"]'], ids=["pandas", "JSON"])
def test_a_cell_may_have_a_list_of_captions(tmp_path: Path, cell: str):
    text = "image,caption\na.jpg," + '"' + cell.replace('"', '""') + '"\n'
    assert read_captions(write(tmp_path / "captions.csv", text)).captions == {"a.jpg": ["A dog", "It's one"]}


def test_a_caption_in_brackets_is_no_list(tmp_path: Path):
    text = "image,caption\na.jpg,[a dog]\n"
    assert read_captions(write(tmp_path / "captions.csv", text)).captions == {"a.jpg": ["[a dog]"]}
