"""The captions of a photograph as pictures and pages, and the names of their files."""

import io
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops
from sample_pages import WORDS, gated, photograph
from slow_cases import slow_after

from showattendtell.errors import UserError
from showattendtell.visualization.pages import first_noun, picture_names


def test_a_notebook_shows_the_picture_that_save_draws(tmp_path: Path):
    formatters = pytest.importorskip("IPython.core.formatters", reason="needs ipykernel, which make setup installs")
    output = gated()
    shown, _ = formatters.DisplayFormatter().format(output)
    output.save(tmp_path / "saved.png")
    with Image.open(io.BytesIO(shown["image/png"])) as notebook, Image.open(tmp_path / "saved.png") as saved:
        assert ImageChops.difference(notebook.convert("RGB"), saved.convert("RGB")).getbbox() is None


@pytest.mark.parametrize(("suffix", "form"), [("jpg", "JPEG"), ("TIFF", "TIFF"), ("webp", "WEBP"), ("GIF", "GIF")])
def test_the_suffix_of_a_picture_is_its_format(tmp_path: Path, suffix: str, form: str):
    gated().save(tmp_path / f"a.{suffix}")
    with Image.open(tmp_path / f"a.{suffix}") as picture:
        assert picture.format == form
        assert getattr(picture, "is_animated", False) == (form in ("WEBP", "GIF"))


@pytest.mark.parametrize("size", [(200, 300), (1000, 333)])
@pytest.mark.parametrize(
    ("width", "dpi", "least"), slow_after(1, [(None, None, 300), (7.0, 300, 380), (3.3, None, 80)])
)
def test_a_figure_has_the_width_and_resolution_that_are_asked_for(
    tmp_path: Path, size: tuple[int, int], width: float | None, dpi: int | None, least: int
):
    output = gated(photograph(*size))
    figure = output.plot(width=width, dpi=dpi)
    figure.draw_without_rendering()
    panels = [axis.get_window_extent().width for axis in figure.axes]
    assert len(panels) == 5
    assert min(panels) >= least
    assert [axis.get_title().split()[0] for axis in figure.axes[1:]] == list(output.words)
    output.save(tmp_path / "a.png", width=width, dpi=dpi)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == pytest.approx((width or 10) * (dpi or 160), abs=1)


def test_a_caption_is_saved_as_vectors_and_as_a_page(tmp_path: Path):
    output = gated()
    for name, beginning in (("a.svg", b"<?xml"), ("a.pdf", b"%PDF"), ("a.html", b"<!doctype html>")):
        output.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(beginning)
    assert b"/Type3" not in (tmp_path / "a.pdf").read_bytes()  # refused by IEEE and ACM
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(f">{escape(word, quote=False)}  " in text for word in output.words)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count('class="word"') == len(output.words) + 2
    output.save(tmp_path / "a.svg")  # which is replaced


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("a.html", {"width": 3, "dpi": 100}, "a.html is a page, which has no width and dpi"),
        ("a.png", {"colormap": "infernal"}, "colormap=infernal is not one of matplotlib's; did you mean 'inferno'"),
        ("a.gif", {"words": "dog"}, "words=dog should be a list"),
        ("a.png", {"width": 0}, "width=0 should be a width in inches, 0.5 to 20"),
        ("a.png", {"columns": 2}, "PictureStyle has no argument columns; available: colormap, dpi, rows, width, words"),
        ("a.bmp", {}, "'.bmp'; choose one of png, jpg, jpeg, tif, tiff, pdf, svg, gif, webp, html"),
        ("a.png", {"dpi": 10**6}, "dpi=1000000 should be less than or equal to 1200"),
    ],
)
def test_a_size_that_a_file_cannot_have_raises_an_error(tmp_path: Path, name: str, size: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        gated().save(tmp_path / name, **size)
    assert list(tmp_path.iterdir()) == []


def test_a_figure_shows_the_words_that_are_asked_for_in_their_order():
    figure = gated().plot(width=7, words=[WORDS[2], WORDS[1], "absent"])
    assert [axis.get_title().split()[:1] for axis in figure.axes] == [[], [WORDS[1]], [WORDS[2]]]
    assert len({round(axis.get_position().y0, 6) for axis in gated().plot(rows=1).axes}) == 1


def test_a_long_caption_fits_into_a_narrow_figure():
    words = ("a", "man", "in", "a", "green", "shirt", "is", "jumping", "over", "a", "wooden", "ramp")
    caption = gated().best._replace(words=words, attention=np.ones((12, 3, 3)), gates=np.ones(12))
    figure = replace(gated(), captions=(caption,)).plot(width=2, words=["absent"])
    [line] = figure.texts
    figure.draw_without_rendering()
    assert 0.8 * figure.bbox.width < line.get_window_extent().width < figure.bbox.width


def test_the_mark_of_doubt_is_in_every_picture(tmp_path: Path):
    sure = gated()
    not_sure = replace(sure, captions=(sure.best._replace(not_sure=True),))
    assert not_sure.plot().get_suptitle() == f"{' '.join(WORDS)} (not sure)"
    assert repr(not_sure).endswith("(not sure)>")
    ink = []
    for number, caption in enumerate((sure, not_sure)):
        caption.save(tmp_path / f"{number}.gif")
        with Image.open(tmp_path / f"{number}.gif") as animation:
            assert animation.n_frames == len(WORDS) + 1
            ink.append((255 - np.asarray(animation.convert("L"))[200:].astype(int)).sum())
    assert ink[1] > ink[0]


@pytest.mark.parametrize("name", ["a", "a.", ".png", "a.bmp", "a.heic", "a.tar.gz", "a.png\n"])
def test_another_suffix_raises_an_error(tmp_path: Path, name: str):
    with pytest.raises(UserError, match="a picture cannot be written as"):
        gated().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_raises_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file/a.png cannot be written .*; choose another place"):
        gated().save(tmp_path / "file" / "a.png")


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["photo.jpg", "photo.png", "other.jpg"], ["photo", "photo-2", "other"]),
        (
            ["photo-2.jpg", "photo.jpg", "photo.png", "photo.png", "photo-2.jpg"],
            ["photo-2", "photo", "photo-3", "photo-4", "photo-2-2"],
        ),
        (["photo.jpg", "rome/photo.jpg", "rome/photo.png"], ["photo", "rome/photo", "rome/photo-2"]),
        (["v1.0/photo"], ["v1.0/photo"]),
    ],
)
def test_pictures_of_equal_names_do_not_overwrite_each_other(files: list[str], names: list[str]):
    assert [name for (name,) in picture_names(files, ["soft"])] == names


def test_each_model_has_a_folder_of_pictures():
    models = ["soft/best.ckpt", "a + b", "../v1.0/c", "...", "..", "云"]
    folders = ["soft-best", "a-+-b", "v1-0-c", "model", "model-2", "云"]
    assert picture_names(["photo.jpg", "rome/photo.jpg"], models) == [
        tuple(f"{folder}/photo" for folder in folders),
        tuple(f"{folder}/rome/photo" for folder in folders),
    ]


@pytest.mark.parametrize(
    ("caption", "noun"),
    [
        ("a brown dog runs", "dog"),
        ("two people in front of a house", "people"),
        ("there is an orange star and a circle", "star"),
        ("there is a green cross", "cross"),
    ],
)
def test_a_page_opens_with_the_first_noun(caption: str, noun: str):
    words = caption.split()
    assert words[first_noun(words)] == noun
