"""Pages and moving pictures that the commands write."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from runs import Run, assert_done, assert_error, held_out, validated
from slow_cases import slow_after

SHORT = "decoding.max_length=4"


def names(page: Path) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*)</h2>", page.read_text())


def test_a_run_has_a_page_of_its_validation_images(run: Run, checkpoint: Path, folder: Path):
    done = assert_done(run("caption", f"checkpoint={checkpoint}", "split=val", "number=4", SHORT))
    page = checkpoint.with_name("page-val.html")
    assert done.out == f"written to {page}\n"
    assert names(page) == [f"val-{number:05d}.png" for number in (0, 2, 5, 7)]
    html = page.read_text()
    assert ", 4 of 10 images of val" in html
    assert "first/best.ckpt" in html
    for example in (validated(folder)[number] for number in (0, 2, 5, 7)):
        for caption in example.captions:
            written = caption.written or " ".join(caption.words)
            assert f'<li dir="auto">{written}</li>' in html


def test_a_page_of_a_split_has_the_score_of_each_caption(run: Run, checkpoint: Path, folder: Path):
    line = [f"checkpoint={checkpoint}", "split=val", SHORT, "decoding.allow_unk=false"]
    assert_done(run("evaluate", *line, "metrics=[cider]", "output=val.json"))
    assert_done(run("caption", *line, "number=3", "output=sorted.html"))
    html = (folder / "sorted.html").read_text()
    found = dict(zip(names(folder / "sorted.html"), re.findall(r' data-score="(.*?)"', html), strict=True))
    scores = json.loads((folder / "val.json").read_text())["per_image"]
    for name, score in found.items():
        assert float(score) == pytest.approx(scores[name]["cider"], abs=1e-3)
    assert len(re.findall(r' data-confidence="0\.\d{4}"', html)) == 3


def test_an_image_that_cannot_be_read_is_passed_over_and_reported_at_the_end(run: Run, checkpoint: Path, folder: Path):
    shutil.copytree(folder / "cache/shapes", folder / "broken")
    for first in (folder / "broken").rglob("val-00000.png"):
        first.write_bytes(first.read_bytes()[:100])
    line = [f"checkpoint={checkpoint}", "dataset.root=broken", "split=val", "number=2", "output=rest.html", SHORT]
    assert_error(run("caption", *line), "val-00000.png", "cannot be read")
    assert names(folder / "rest.html") == ["val-00005.png"]


HOSTILE = "<script>alert(1)<&>'.png"


@pytest.fixture(scope="module")
def hostile(folder: Path, prepared: Any) -> Path:
    """A photograph whose name is markup."""
    (folder / "hostile").mkdir()
    return Path(shutil.copy(held_out(folder)[0].path, folder / "hostile" / HOSTILE))


@pytest.fixture(scope="module")
def said(run: Run, checkpoint: Path, folder: Path, hostile: Path) -> str:
    """The caption that is printed of it."""
    line = [f"checkpoint={checkpoint}", "hostile", SHORT, "output=formats", "formats=[gif,webp,html]"]
    done = assert_done(run("caption", *line))
    assert done.err == "written: formats/index.html, formats/*.gif, formats/*.webp\n"
    return done.out.removesuffix("\n")


def test_the_page_and_the_pictures_say_what_is_printed(said: str, folder: Path):
    stem = HOSTILE.removesuffix(".png")
    written = [folder / "formats" / name for name in (f"{stem}.gif", f"{stem}.webp", "index.html")]
    assert sorted((folder / "formats").iterdir()) == sorted(written)
    words = said.split()
    assert re.findall(r'role="option".*>(.*)</span>', written[2].read_text()) == words
    for file in written[:2]:
        with Image.open(file) as picture:
            assert picture.n_frames == len(words) + 1


def test_a_hostile_name_of_a_photograph_is_shown_as_it_is(said: str, folder: Path):
    page = folder / "formats/index.html"
    assert names(page) == ["&lt;script&gt;alert(1)&lt;&amp;&gt;&#39;.png"]
    assert page.read_text().count("<script>") == 1


@pytest.mark.slow
def test_each_of_several_checkpoints_has_its_own_captions(
    run: Run, checkpoint: Path, folder: Path, hostile: Path, said: str, altered: Callable[..., Path]
):
    def forget(content: dict[str, Any]) -> None:
        for name, value in content["state_dict"].items():
            if name.startswith("captioner."):
                value.zero_()
        content["showattendtell"]["vocabulary"][-1] = "otherwise"

    other = altered(forget)
    line = ["hostile", SHORT, "formats=[html]"]
    done = assert_done(run("caption", f"checkpoint={checkpoint}", f"compare={other}", "output=compared", *line))
    named = assert_done(run("caption", f"checkpoint={other}", "names=[mine]", "output=alone", *line))
    alone = named.out.removesuffix("\n")
    assert "1 photograph · mine" in (folder / "alone/index.html").read_text()
    name = f"{other.parent.name}/altered.ckpt"
    assert done.out.splitlines() == [f"first/best.ckpt\t{said}", f"{name}\t{alone}"]
    html = (folder / "compared/index.html").read_text()
    assert re.findall(r"<h3>(.*)</h3>", html) == ["first/best.ckpt", name]
    assert html.count("data:image/webp") == 1


@pytest.mark.parametrize(
    ("command", "settings", "words"),
    slow_after(
        1,
        [
            ("caption", ["images=blank.png", "compare=nowhere.ckpt"], ["nowhere.ckpt does not exist"]),
            ("caption", ["images=blank.png", "names=[a,b]"], ["names=a,b must have a different name for each model"]),
            (
                "caption",
                ["images=blank.png", "output=file", "formats=[html]"],
                ["file/index.html", "cannot be written"],
            ),
            ("caption", ["split=test", "output=file/page.html", "number=1"], ["file/page.html", "cannot be written"]),
            ("caption", ["split=test", "dataset.entities=boxes.zip"], ["entities"]),
            ("caption", ["split=test", "images=blank.png"], ["images=photo.jpg", "split=test", "not both"]),
            ("caption", ["split=test", "formats=[png]"], ["split=test writes one html page; leave formats, overwrite"]),
            ("caption", [], ["images is not set", "split=test"]),
        ],
    ),
)
def test_a_fault_is_reported(
    run: Run, checkpoint: Path, folder: Path, command: str, settings: list[str], words: list[str]
):
    (folder / "file").write_text("in the way")
    Image.new("RGB", (40, 30)).save(folder / "blank.png")
    assert_error(run(command, f"checkpoint={checkpoint}", SHORT, *settings), *words)
