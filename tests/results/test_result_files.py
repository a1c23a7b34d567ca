"""Result files: where they are found, and what is said of other files."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from small_results import ensemble, result, write

from showattendtell.errors import UserError
from showattendtell.results.files import find_results, is_current, read_result


def paths(places: list[Path], split: str = "test") -> list[str]:
    return [found.path for found in find_results([str(place) for place in places], split)]


def test_a_folder_is_searched_with_all_below_it_in_order_of_names(tmp_path: Path):
    one = write(result(), tmp_path / "flickr8k-soft/2026/results-test.json")
    swept = write(result(), tmp_path / "flickr8k-sweep/2026/0/results-test.json")
    write(result(split="val"), tmp_path / "flickr8k-soft/2026/results-val.json")
    write({}, tmp_path / "flickr8k-soft/2026/attention-test.json")
    assert paths([tmp_path]) == [str(one), str(swept)]
    assert paths([swept.parent, one]) == [str(swept), str(one)]


def test_figures_are_the_finite_numbers(tmp_path: Path):
    content = result(bleu1=61, meteor_of_words=1.7e308, cider=float("nan"), spice=None, rouge_l="high", meteor=True)
    figures = read_result(write(content, tmp_path / "results-test.json")).figures
    assert figures == {"bleu1": 61.0, "bleu2": 50.0, "bleu3": 40.0, "bleu4": 30.0, "images": 1000.0}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in result().items() if key != name}


NO_RESULTS: dict[str, tuple[Any, str]] = {
    "cut off": (b'{"dataset": "fl', r"\(Invalid JSON: EOF while parsing"),
    "list": ([1, 2], r"\(Input should be an object\); leave it out$"),
    "foreign": ({"images": []}, r"\(dataset: Field required\)"),
    "no settings": (without("config"), r"\(models: Input should be a valid dictionary\)"),
    "uneven": ({**result(), "seed": [1, 2]}, r"\(models: Input should be a valid string\)"),
    "control": ({**result(), "dataset": "\x1b]0;title\x07"}, "control characters"),
}


@pytest.mark.parametrize(("content", "reason"), NO_RESULTS.values(), ids=NO_RESULTS)
def test_a_file_that_is_no_result_raises_an_error_and_ends_the_search(tmp_path: Path, content: Any, reason: str):
    write(result(), tmp_path / "good/results-test.json")
    poor = tmp_path / "poor/results-test.json"
    poor.parent.mkdir()
    poor.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(UserError, match=f"results-test.json (is not a result file of evaluate|was altered).*{reason}"):
        paths([tmp_path])


def test_places_without_results_raise_an_error(tmp_path: Path):
    (tmp_path / "void").mkdir()
    write(result(split="val"), tmp_path / "other/results-val.json")
    for place, sentence in {
        "nowhere": "nowhere does not exist; give result files",
        "void": "the folder .*void holds no results-.*json",
        "other": "other has no results on the split test, but on val; give split=NAME",
        "other/results-val.json": "results-val.json has no results on the split test, but on val",
    }.items():
        with pytest.raises(UserError, match=sentence):
            paths([tmp_path / place])


def hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("files", "checkpoint", "sha256", "current"),
    [
        ({"run/best.ckpt": b"1"}, "run/best.ckpt", hashed(b"1"), True),
        ({"best.ckpt": b"1"}, "before/best.ckpt", hashed(b"1"), True),
        ({"best.ckpt": b"2"}, "before/best.ckpt", hashed(b"1"), False),
        ({"best.ckpt": b"2", "run/best.ckpt": b"1"}, "run/best.ckpt", hashed(b"1"), True),
        ({"model/model.safetensors": b"2"}, "model", hashed(b"1"), False),
        ({"a.ckpt": b"1", "b.ckpt": b"1"}, ["a.ckpt", "b.ckpt"], [hashed(b"1"), hashed(b"2")], False),
        ({"a.ckpt": b"1"}, ["a.ckpt", "b.ckpt"], [hashed(b"1"), hashed(b"2")], True),
        ({}, "x" * 5000, hashed(b"1"), True),
    ],
)
def test_a_result_is_current_if_its_checkpoints_have_its_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Any, checkpoint: Any, sha256: Any, current: bool
):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    members = [result()] if isinstance(checkpoint, str) else [result(), result()]
    content = ensemble(*members, checkpoint=checkpoint, checkpoint_sha256=sha256) if len(members) > 1 else result()
    read = read_result(write({**content, "checkpoint": checkpoint, "checkpoint_sha256": sha256}, tmp_path / "r.json"))
    assert is_current(read) == current


def test_of_two_evaluations_the_newer_one_is_first(tmp_path: Path):
    older, newer = (write(result(), tmp_path / name) for name in ("results-test.json", "results-test-2.json"))
    for order in ((older, newer), (newer, older)):
        for seconds, path in enumerate(order):
            os.utime(path, (seconds, seconds))
        assert paths([tmp_path]) == list(map(str, reversed(order)))
