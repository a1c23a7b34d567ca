import json
import os
from pathlib import Path
from typing import Any

import pytest

from showattendtell.errors import UserError
from showattendtell.readers.formats import PLAIN, find_caption_files, read_all, read_captions
from showattendtell.text.parsing import CaptionFile


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding, newline="")
    return path


SAID = {"a.jpg": ["A dog ."], "b.jpg": ["Two cats ."]}
KARPATHY = [{"filename": name, "split": "test", "sentences": [{"raw": said[0]}]} for name, said in SAID.items()]
LISTED = [{"image": name, "caption": said[0]} for name, said in SAID.items()]
COCO = {
    "images": [{"id": number, "file_name": name} for number, name in enumerate(SAID)],
    "annotations": [{"image_id": number, "caption": said[0]} for number, said in enumerate(SAID.values())],
}
RESULTS: dict[str, Any] = {"captions": {name: said[0] for name, said in SAID.items()}, "references": SAID}
LINES = "\n".join(map(json.dumps, LISTED))
TOKENS = "".join(f"{name}#0\t{said[0]}\n" for name, said in SAID.items())
ROWS = "".join(f"{name},{said[0]}\n" for name, said in SAID.items())

FORMS = {
    "coco.json": json.dumps(COCO),
    "coco_pretty.json": json.dumps(COCO, indent=1),
    "coco_without_suffix": json.dumps(COCO),
    "results_of_coco.json": json.dumps(LISTED, indent=1),
    "karpathy.json": json.dumps({"images": KARPATHY, "dataset": "flickr8k"}),
    "evaluated.json": json.dumps(RESULTS, indent=1),
    "lines.jsonl": LINES,
    "lines.json": LINES,
    "lines.txt": f"\n{LINES}\n",
    "one_line_after_another.ndjson": LINES,
    "table.csv": f"image,caption\n{ROWS}",
    "table.txt": f"image,caption\n{ROWS}",
    "table.tsv": f"image,caption\n{ROWS}".replace(",", "\t"),
    "Flickr8k.token.txt": TOKENS,
    "results_20130124.token": TOKENS,
    "captions": TOKENS,
}
"""The same captions in every form."""


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_file_is_reported_by_its_content_and_suffix(tmp_path: Path, name: str):
    assert read_captions(write(tmp_path / name, FORMS[name])).captions == SAID


def test_the_faults_of_all_files_are_reported_at_once(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "picture.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(UserError) as error:
        read_all(tmp_path / name for name in ("folder", "empty", "pipe", "picture.jpg", "nowhere"))
    faults = str(error.value).replace(f"{tmp_path}/", "").split("; ")
    assert faults == [
        "folder cannot be read (it is a folder)",
        "empty is empty",
        "pipe cannot be read (it is a pipe or device)",
        *(
            "picture.jpg is not UTF-8 text (byte 0)",
            "convert it (in Excel: CSV UTF-8, in Python: to_csv(index=False) of the pandas table)",
        ),
        "nowhere does not exist",
    ]


def test_a_file_is_meant_by_its_name_or_by_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ref0", "ref1", "ref10", "[a].txt", "deep/er/ref.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    assert find_caption_files("ref1") == [Path("ref1")]
    assert find_caption_files("ref?") == [Path("ref0"), Path("ref1")]
    assert find_caption_files(["ref1", "ref*"]) == [Path("ref1"), Path("ref0"), Path("ref10")]
    assert find_caption_files("[a].txt") == [Path("[a].txt")]
    assert find_caption_files("**/ref.txt") == [Path("deep/er/ref.txt")]
    assert find_caption_files("nowhere") == [Path("nowhere")]


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1c"])
def test_only_line_feeds_end_a_caption(tmp_path: Path, mark: str):
    path = write(tmp_path / "tokens.txt", TOKENS.replace("A dog", f"A{mark}dog"))
    assert read_captions(path).captions == {**SAID, "a.jpg": [f"A{mark}dog ."]}


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


NUMBERED = {
    "images": [{"id": 7, "file_name": "b.jpg"}, {"id": 5, "file_name": "a.jpg"}, {"id": 9}],
    "annotations": [
        {"image_id": 5, "caption": "A dog ."},
        {"image_id": 7, "caption": "Two cats ."},
        {"image_id": 5, "caption": "It barks !"},
    ],
}


def test_coco_s_captions_are_named_after_files_and_their_numbers_are_aliases(tmp_path: Path):
    file = read_captions(write(tmp_path / "captions.json", json.dumps(NUMBERED)))
    assert list(file.captions.items()) == [("b.jpg", ["Two cats ."]), ("a.jpg", ["A dog .", "It barks !"]), ("9", [])]
    assert file.aliases == {"7": "b.jpg", "5": "a.jpg"}


@pytest.mark.parametrize("cell", ["['A dog', \"It's one\"]", '["A dog", "It\'s one"]'], ids=["pandas", "JSON"])
def test_a_cell_may_have_a_list_of_captions(tmp_path: Path, cell: str):
    text = "image,caption\na.jpg," + '"' + cell.replace('"', '""') + '"\n'
    assert read_captions(write(tmp_path / "captions.csv", text)).captions == {"a.jpg": ["A dog", "It's one"]}


def test_a_caption_in_brackets_is_no_list(tmp_path: Path):
    text = "image,caption\na.jpg,[a dog]\n"
    assert read_captions(write(tmp_path / "captions.csv", text)).captions == {"a.jpg": ["[a dog]"]}
