import json
import os
from pathlib import Path
from typing import Any

import pytest

from showattendtell.errors import UserError
from showattendtell.readers.formats import find_caption_files, read_all, read_captions

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
    (tmp_path / name).write_text(FORMS[name])
    assert read_captions(tmp_path / name).captions == SAID


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
