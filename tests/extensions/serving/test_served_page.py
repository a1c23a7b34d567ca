"""The page in a real Chromium, on a real server: photographs in, captions and maps out."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe import faults
from chromium import sharing_contexts, started_browser
from hostile_uploads import encoded, noise
from server_requests import caption
from small_server import WORDS, Served

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which make setup installs")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def open_tab() -> Iterator[Open]:
    with started_browser() as browser:
        yield sharing_contexts(browser)


@pytest.fixture
def open_site(open_tab: Open, served: Served) -> Iterator[Open]:
    """Opens the page; at the end it has reported no error of its own on the console, and asked only its server."""
    reported, asked, tabs = [], [], []

    def open_site(width: int = 1280, compared: bool = False, **choices: Any) -> Any:
        settings = {"viewport": {"width": width, "height": 800}, "reduced_motion": "reduce", **choices}
        tabs.append(tab := open_tab(**settings))
        tab.on("console", lambda message: reported.append(message.text))
        tab.on("pageerror", lambda fault: reported.append(str(fault)))
        tab.on("dialog", lambda dialog: reported.append("a dialog"))
        tab.on("filechooser", lambda chooser: None)  # from here on the browser leaves them to the tests
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(served.address)
        if not compared:
            tab.get_by_label("hard/best.ckpt").uncheck()
        return tab

    yield open_site
    for tab in tabs:
        tab.close()
    assert [one for one in reported if not one.startswith("Failed to load resource")] == []
    assert [url for url in asked if not url.startswith(("data:", f"blob:{served.address}", served.address))] == []


def photograph(name: str = "a.png", width: int = 90, height: int = 60) -> dict[str, Any]:
    return {"name": name, "mimeType": "image/png", "buffer": encoded(noise(width, height))}


def give(tab: Any, *photographs: dict[str, Any]) -> None:
    """Choose files, and wait for the cards of all."""
    tab.locator("#chooser").set_input_files(list(photographs))
    settle(tab)


def settle(tab: Any) -> None:
    tab.locator(".card").first.wait_for()
    playwright.expect(tab.locator(".waiting")).to_have_count(0, timeout=900_000)


def words(tab: Any, panel: int = 0) -> list[str]:
    return tab.locator(".panel").nth(panel).locator(".caption:not(.other) .word").all_inner_texts()


def said(served: Served, sent: dict[str, Any], **options: Any) -> list[list[str]]:
    """The words that the endpoint answers with, of each model."""
    accounts = caption(served.address, sent["buffer"], **options).json["photographs"][0]["outputs"]
    return [[word["word"] for word in account["captions"][0]["words"]] for account in accounts]


def test_a_photograph_that_is_chosen_is_captioned_and_each_word_shows_its_map(open_site: Open, served: Served):
    tab, sent = open_site(), photograph()
    give(tab, sent)
    assert words(tab) == said(served, sent)[0]
    for number in range(len(words(tab))):
        word = tab.locator(".word").nth(number)
        word.hover()
        assert tab.locator(".panel.looking").count() == 1
        assert tab.locator(".place").inner_text() == word.get_attribute("aria-label")
    assert tab.locator(".frame img").evaluate("one => one.naturalWidth") == 90


def test_photographs_that_are_dropped_or_pasted_are_taken(open_site: Open):
    tab = open_site()
    content = base64.b64encode(photograph()["buffer"]).decode()
    for kind, holder in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        tab.evaluate(
            """([kind, holder, content]) => {
              const held = new DataTransfer();
              held.items.add(new File([Uint8Array.from(atob(content), one => one.charCodeAt(0))], `${kind}.png`));
              const Kind = kind === "drop" ? DragEvent : ClipboardEvent;
              document.body.dispatchEvent(new Kind(kind, {[holder]: held, bubbles: true, cancelable: true}));
            }""",
            [kind, holder, content],
        )
        settle(tab)
    assert tab.locator("h2:visible").all_inner_texts() == ["paste.png", "drop.png"]
    assert tab.locator(".panel").count() == 2


def test_photographs_keep_their_order_and_no_name_or_word_is_markup(open_site: Open):
    tab, name = open_site(), '<img src=x onerror="alert(1)">.png'
    broken = {"name": "b<i>.svg", "mimeType": "image/svg+xml", "buffer": b"<svg onload='alert(1)'/>"}
    give(tab, photograph(name), broken, photograph("c.png"))
    assert tab.locator("h2:visible").all_inner_texts() == [name, "b<i>.svg", "c.png"]
    assert tab.locator(".panel").count() == 2
    assert set(tab.locator(".word").all_inner_texts()) <= set(WORDS)
    assert tab.locator("#cards :is(b, i, br, script), #cards h2 img").count() == 0
    fault = tab.locator(".card").nth(1).locator(".fault").inner_text()
    assert fault.startswith("image b<i>.svg cannot be read (it is empty or of no known image format)")


def test_a_file_that_is_too_large_is_not_even_sent(open_site: Open, tmp_path: Path):
    tab = open_site()
    (tmp_path / "big.png").write_bytes(bytes(33_000_000))
    sent: list[str] = []
    tab.on("request", lambda request: sent.append(request.method))
    tab.locator("#chooser").set_input_files(tmp_path / "big.png")
    settle(tab)
    assert tab.locator(".fault").inner_text() == "big.png has more than 32 MB; choose a smaller copy"
    assert "POST" not in sent


def test_two_models_are_side_by_side_and_hard_attention_looks_as_requested(open_site: Open, served: Served):
    tab, sent = open_site(), photograph()
    give(tab, sent)
    tab.get_by_label("hard/best.ckpt").check()
    for look in ("expectation", "argmax"):
        tab.get_by_label("Hard attention looks at").select_option(look)
        tab.get_by_role("button", name="Caption again").click()
        settle(tab)
        expected = said(served, sent, model=["soft/best.ckpt", "hard/best.ckpt"], attention=look)
        assert [words(tab, 0), words(tab, 1)] == expected
    assert tab.locator("h3").all_inner_texts() == ["soft/best.ckpt", "hard/best.ckpt"]
    left, right = (panel.bounding_box() for panel in tab.locator(".panel").all())
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_an_example_is_captioned_and_its_source_named(open_site: Open, number: int):
    tab = open_site()
    source = tab.locator("#examples a").nth(number)
    assert source.get_attribute("href").endswith(f"id={source.inner_text()}")
    button = tab.locator("#examples button").nth(number)
    file = button.get_attribute("data-example")
    button.click()
    settle(tab)
    assert tab.locator("h2:visible").all_inner_texts() == [file]
    assert len(words(tab)) >= 3
    assert not tab.locator("#examples").is_visible()


@pytest.mark.slow
def test_the_caption_is_announced_to_screen_readers(open_site: Open):
    tab = open_site()
    give(tab, photograph("a.png"))
    assert f"The photograph a.png, captioned: {' '.join(words(tab))}." in tab.get_by_role("status").inner_text()
    assert tab.get_by_role("article", name="a.png").count() == 1
    assert tab.get_by_role("main", name="Photographs").count() == 1
    give(tab, {"name": "b.png", "mimeType": "image/png", "buffer": b"no image"})
    assert tab.get_by_role("status").inner_text().startswith("image b.png cannot be read")


def test_a_server_that_has_ended_is_reported(open_site: Open, served: Served):
    tab = open_site()
    tab.route("**/cards", lambda route: route.abort())
    tab.locator("#chooser").set_input_files([photograph()])
    fault = tab.locator(".fault")
    fault.wait_for()
    assert fault.inner_text() == "the server does not answer; is it still running?"


@pytest.mark.slow
def test_the_page_tries_again_when_all_connections_were_used(open_site: Open):
    tab = open_site()
    tab.route("**/cards", lambda route: route.fulfill(status=503), times=1)
    give(tab, photograph())
    assert tab.locator(".panel").count() == 1


def test_a_photograph_that_the_browser_cannot_show_is_shown_by_the_server(open_site: Open):
    tab = open_site()
    give(tab, {"name": "a.tiff", "mimeType": "image/tiff", "buffer": encoded(noise(), "TIFF")})
    assert tab.locator(".frame img").evaluate("one => one.naturalWidth") == 64


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_no_fault_and_nothing_is_wider_than_the_screen(open_site: Open, width: int, scheme: str):
    tab = open_site(width, compared=True, color_scheme=scheme)
    assert faults(tab) == []
    broken = {"name": "b.png", "mimeType": "image/png", "buffer": b"no image"}
    give(tab, photograph("n" * 110 + ".png"), photograph(width=600, height=8), broken)
    tab.locator(".word").first.focus()
    assert faults(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.goto(tab.url + "docs")
    assert faults(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
