"""Models as folders: what is written, where they are found, and a hub on this machine from which they are fetched."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, RepoUrl
from photo_server import OTHER_HUB, serve_hub
from repository import ROOT

from showattendtell import load
from showattendtell.config.compose import as_settings, compose
from showattendtell.errors import UserError
from showattendtell.loading.checkpoints import WEIGHTS, read_model_folder, write_model_folder
from showattendtell.loading.hub import CONFIG, PUBLISHED, bundled_models, check_root, find_model, next_to
from showattendtell.visualization.rendering import EXAMPLES

CARD = {
    "format": 3,
    "config": {"cache": "/home/someone/cache", "encoder": {"weights": "/data/vgg.pth"}, "dataset": {"root": "photos"}},
    "vocabulary": ["<pad>", "<start>", "<eos>", "<unk>", "été"],
}
STATE = {
    "captioner.word.weight": torch.randn(3, 4),
    "captioner.word.bias": torch.randn(3),
    "encoder.conv.weight": torch.randn(2, 2),
    "encoder.norm.steps": torch.tensor(7),
    "loss.baseline": torch.tensor(1.0),
}


def test_matrices_are_written_in_half_precision_and_all_else_as_it_is(tmp_path: Path):
    write_model_folder(tmp_path, CARD, STATE, with_encoder=True)
    card, state = read_model_folder(tmp_path)
    assert card["vocabulary"] == CARD["vocabulary"]
    assert set(state) == {name for name in STATE if not name.startswith("loss.")}
    assert state["captioner.word.weight"].dtype == torch.half
    torch.testing.assert_close(
        state["captioner.word.weight"].float(), STATE["captioner.word.weight"], atol=0, rtol=1e-3
    )
    assert torch.equal(state["captioner.word.bias"], STATE["captioner.word.bias"])
    assert torch.equal(state["encoder.norm.steps"], STATE["encoder.norm.steps"])


def test_a_model_that_cannot_be_written_leaves_the_one_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full_disk(_: int) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    write_model_folder(tmp_path, CARD, STATE, with_encoder=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    other = {name: value + 1 for name, value in STATE.items()}
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="full"):
        write_model_folder(tmp_path, CARD, other, with_encoder=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_weights_that_are_published_elsewhere_are_left_out(tmp_path: Path):
    write_model_folder(tmp_path, CARD, STATE, with_encoder=False)
    assert not any(name.startswith("encoder.") for name in read_model_folder(tmp_path)[1])


def test_nobody_learns_where_things_were_on_the_machine(tmp_path: Path):
    write_model_folder(tmp_path, CARD, STATE, with_encoder=True)
    text = (tmp_path / CONFIG).read_text(encoding="utf-8")
    assert "someone" not in text
    assert "/data" not in text
    assert json.loads(text)["config"]["dataset"]["root"] == "photos"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: (folder / WEIGHTS).unlink(), f"cannot be read .*{WEIGHTS} does not exist"),
        (lambda folder: (folder / CONFIG).unlink(), f"cannot be read .*{CONFIG} does not exist"),
        (lambda folder: (folder / CONFIG).write_text("{"), "cannot be read .JSONDecodeError: Expecting"),
        (lambda folder: (folder / CONFIG).write_text("{}"), "was not written by showattendtell"),
        (lambda folder: (folder / CONFIG).write_text("[]"), "was not written by showattendtell"),
        (lambda folder: ((folder / WEIGHTS).unlink(), os.mkfifo(folder / WEIGHTS)), "it is a pipe or device"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"cut"), "cannot be read .Safetensor"),
    ],
    ids=["no weights", "no configuration", "cut configuration", "foreign", "list", "pipe", "cut weights"],
)
def test_a_folder_that_is_no_model_is_reported(tmp_path: Path, change, sentence: str):
    write_model_folder(tmp_path, CARD, STATE, with_encoder=True)
    change(tmp_path)
    with pytest.raises(UserError, match=sentence):
        read_model_folder(tmp_path)


def test_a_model_is_a_path_and_has_files_next_to_it_or_comes_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.ckpt").touch()
    assert find_model("best.ckpt") == Path("best.ckpt")
    assert find_model(str(tmp_path)) == tmp_path / "best.ckpt"
    for path in (tmp_path, tmp_path / "best.ckpt"):
        assert next_to(str(path), "page.html") == tmp_path / "page.html"
    assert next_to("flickr8k_soft", "page.html") == next_to("someone/model", "page.html") == Path("page.html")
    for name, folder in bundled_models().items():
        assert find_model(name) == folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_missing_folder_of_a_published_data_set_is_reported_with_the_way_to_get_it(name: str):
    settings = as_settings(compose("train", [f"dataset={name}", "dataset.root=nowhere"]))
    with pytest.raises(UserError, match=r"the folder /.*/nowhere does not exist; .* get its photographs: ") as missing:
        check_root(settings.dataset)
    [address] = re.findall(r"https?://[^ ']+", str(missing.value))
    assert address in (ROOT / "docs/data.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["flickr8k_sotf", "runs/best.ckpt", "a/b/c/d", "../x", "", "./a"])
def test_a_name_that_is_nothing_is_reported_without_a_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="the checkpoint .* does not exist"):
        find_model(name or "nothing")
    with pytest.raises(UserError, match="is a folder without a best.ckpt; give the path of a .ckpt file"):
        find_model(str(tmp_path))


FETCH = """
from showattendtell.loading.checkpoints import read_model_folder
from showattendtell.loading.hub import find_model, note_about
print(*sorted(read_model_folder(find_model(sys.argv[0]))[1]), note_about([sys.argv[0]]), sep="\\n")
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The address of a hub that has someone/model."""
    folder = tmp_path / "published"
    write_model_folder(folder, CARD, STATE, with_encoder=True)
    (folder / "README.md").write_text("---\nnote: knows birds\n---\n", encoding="utf-8")
    places = [("main", "README.md"), *product(("main", "v1"), (CONFIG, WEIGHTS))]
    with serve_hub({f"/someone/model/resolve/{revision}/{name}": folder / name for revision, name in places}) as hub:
        yield hub


@pytest.fixture
def fetch(run_code: Callable[..., Any], tmp_path: Path) -> Callable[[str, str], Any]:
    """Runs `FETCH` for a model and a hub at an address; the cache is that of the test."""
    home = str(tmp_path / "home")
    return lambda name, endpoint: run_code(
        OTHER_HUB + FETCH, name, folder=tmp_path, HF_HOME=home, HF_ENDPOINT=endpoint, HF_HUB_DISABLE_XET="1"
    )


def test_a_model_comes_from_a_mirror_of_the_hub_and_later_from_the_cache(fetch: Callable[[str, str], Any], hub: str):
    fetched = fetch("someone/model", hub)
    *names, note = fetched.out.splitlines()
    assert names == sorted(name for name in STATE if not name.startswith("loss.")), fetched.err
    assert note == "someone/model knows birds"
    offline = fetch("someone/model", "http://127.0.0.1:9")
    assert offline.out == fetched.out, offline.err
    assert fetch("someone/model@v1", hub).out.splitlines() == [*names, "someone/model@v1 knows birds"]


def test_a_model_that_is_not_on_the_hub_is_reported(fetch: Callable[[str, str], Any], hub: str):
    for endpoint in (hub, "http://127.0.0.1:9"):
        failed = fetch("someone/other", endpoint)
        assert "the model someone/other does not exist here and could not be downloaded from the hub" in failed.err


def test_a_published_model_captions_by_its_name_and_says_what_its_card_does(
    run_forked: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def upload(_: HfApi, folder_path: Path, **others: Any) -> None:
        shutil.copytree(folder_path, tmp_path / "published")

    monkeypatch.setattr(HfApi, "create_repo", lambda _, repo_id, **others: RepoUrl(f"https://huggingface.co/{repo_id}"))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    about = {"name": "Birds", "note": "knows birds"}
    load(device="cpu").push_to_hub("someone/birds", model_card_kwargs=about)
    files = {f"/someone/birds/resolve/main/{file.name}": file for file in (tmp_path / "published").iterdir()}
    photograph = str(EXAMPLES / "skater.jpg")
    with serve_hub(files) as hub:
        places = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        settings = ["checkpoint=someone/birds", photograph, "formats=[jsonl]"]
        done = run_forked("caption", *settings, folder=tmp_path, first=OTHER_HUB, **places)
    assert done.out.strip() == load(device="cpu")(photograph).caption, done.err
    assert "note: someone/birds knows birds" in done.err
