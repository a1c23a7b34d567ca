"""The page as a file: what it holds, how large it is, and that names are no markup."""

import base64
import io
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
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

from showattendtell.types import Box
from showattendtell.visualization.pages import (
    Page,
    describe_peak,
    encode_map,
    make_entry,
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
