"""Pages and pictures of captions as files: what they hold, how large they are, and that names are no markup."""

import base64
import io
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops
from sample_pages import (
    HOSTILE,
    WORDS,
    gated,
    one_model,
    peaked,
    photograph,
    two_models,
    ungated,
)
from slow_cases import slow_after

from showattendtell.errors import UserError
from showattendtell.types import Box
from showattendtell.visualization.pages import (
    Page,
    describe_peak,
    encode_map,
    first_noun,
    make_entry,
    picture_names,
    render,
)

VOID = {"meta", "link", "img", "br", "i", "input"}


class Elements(HTMLParser):
    """Every element's name and attributes, and the text."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.open = "", []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID - {"i"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def every(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [own for name, own in self.elements if name == tag and attributes.items() <= own.items()]


def test_a_map_is_a_byte_a_region_with_the_peak_at_255():
    grid = np.array([[0.5, 0.25], [0.0, 0.05]])
    assert list(base64.b64decode(encode_map(grid))) == [255, 128, 0, 26]


def test_a_page_without_a_gate_and_references_has_no_beta_and_no_references():
    html = render(Page("1 photograph", ["hard"], [make_entry("a.jpg", [ungated(photograph(30, 20))])]))
    words = Elements(html).every("span", role="option")
    assert [(word["aria-label"] or "").partition(":")[0] for word in words] == ["a", "cat"]
    assert not any("beta" in (word["aria-label"] or "") or "--gate" in (word["style"] or "") for word in words)
    assert "β" not in html
    assert "Reference captions" not in html
    assert "β" in render(one_model())


@pytest.mark.parametrize(
    ("row", "column", "seen", "place"),
    [
        (0, 0, Box(0, 0, 1, 1), "mostly at the top left"),
        (0, 1, Box(0, 0, 1, 1), "mostly at the top"),
        (1, 1, Box(0, 0, 1, 1), "mostly in the middle"),
        (2, 2, Box(0, 0, 1, 1), "mostly at the bottom right"),
        (1, 0, Box(0.4, 0, 0.7, 1), "mostly in the middle"),
        (2, 2, Box(0, 0, 0.3, 0.3), "mostly at the top left"),
    ],
)
def test_where_a_map_peaks_is_described_by_thirds_of_the_photograph(row: int, column: int, seen: Box, place: str):
    assert describe_peak(peaked(3, 3, row, column), seen) == place
    assert describe_peak(np.array([[0.24, 0.26], [0.25, 0.25]]), seen) == "everywhere alike"


def test_the_page_holds_every_word_with_its_map_and_its_shade():
    page = Elements(render(two_models()))
    assert page.open == []
    words = page.every("span", role="option")
    assert [len(base64.b64decode(word["data-map"])) for word in words] == [9] * 6 + [49] * 2
    assert words[2]["aria-label"] == "runs: mostly at the right, beta 0.50, confidence 0.37"
    gates = ("0.10", "1.00", "0.50", "0.25")
    assert [word.get("style") for word in words[:4]] == [f"--confidence: 0.368; --gate: {gate}" for gate in gates]
    assert [word.get("style") for word in words[6:]] == ["--confidence: 0.368"] * 2
    panels = page.every("section", role="group")
    assert [panel["data-grid"] for panel in panels] == ["3 3", "7 7"]
    assert [panel["aria-label"] for panel in panels] == ["soft/best.ckpt", "hard/best.ckpt"]
    assert sum((picture.get("src") or "").startswith("data:image/webp") for picture in page.every("img")) == 1
    assert panels[0]["data-seen"] == "0.2500 0.0000 0.7500 1.0000"
    assert "a model without a gate has no such shade" in page.text


def test_no_name_and_no_word_is_markup():
    page = Elements(render(two_models()))
    assert len(page.every("script")) == 1
    assert page.every("b") == page.every("runs") == []
    assert HOSTILE in page.text
    assert all(word in page.text for word in WORDS)
    assert page.every("img")[0]["alt"] == f"The photograph {HOSTILE}, captioned: {' '.join(WORDS)}"
    assert page.every("button")[0]["aria-label"] == f"Play the words of {HOSTILE}"


def test_the_page_names_nothing_outside_itself():
    html = render(one_model())
    page = Elements(html)
    linked = [own[name] for _, own in page.elements for name in ("src", "href") if name in own]
    assert len(linked) == 3
    assert all(link.startswith("data:") for link in linked)
    assert "://" not in html
    [policy] = page.every("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; img-src data:;")


@pytest.mark.parametrize(("size", "kept"), [((1200, 800), (640, 427)), ((300, 500), (300, 500)), ((9000, 3), (640, 1))])
def test_a_photograph_is_kept_at_a_sensible_size(size: tuple[int, int], kept: tuple[int, int]):
    entry = make_entry("a.jpg", [gated(photograph(*size))])
    assert entry.outputs[0].photograph.size == kept
    picture = Image.open(io.BytesIO(base64.b64decode(entry.picture.partition(",")[2])))
    assert (picture.format, picture.size) == ("WEBP", kept)


def test_a_name_that_is_no_text_and_a_long_strip_make_a_page():
    entry = make_entry("caf\udce9.jpg", [gated(photograph(2000, 2))])
    assert "caf?.jpg" in render(Page("1 photograph", ["m"], [entry]))


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
        *((name, {}, "a picture cannot be written as") for name in ("a", "a.", ".png", "a.heic", "a.png\n")),
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


def test_a_page_opens_with_the_first_noun():
    for caption, noun in {"two people in front of a house": "people", "there is an orange star": "star"}.items():
        words = caption.split()
        assert words[first_noun(words)] == noun
