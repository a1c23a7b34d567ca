"""A browser, and pages that are opened in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_pages import Open
from chromium import started_browser

from showattendtell.visualization.pages import Page, render


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page as a file, with its photographs alone unless the first maps are asked for; at the end it has said
    nothing on the console and asked for nothing but itself."""
    reported, asked, contexts = [], [], []

    def open_page(page: Page, width: int = 1280, opens: bool = False, **choices: Any) -> Any:
        (tmp_path / "page.html").write_text(render(page), encoding="utf-8")
        settings = {"viewport": {"width": width, "height": 800}, "reduced_motion": "reduce", **choices}
        contexts.append(browser.new_context(**settings))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: reported.append(message.text))
        tab.on("pageerror", lambda fault: reported.append(str(fault)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.clock.install(time=0)
        tab.goto((tmp_path / "page.html").as_uri())
        tab.clock.pause_at(3600)
        if not opens:
            tab.evaluate("opening.disconnect(); document.querySelectorAll('.panel').forEach(clear)")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert reported == []
    assert {url for url in asked if not url.startswith("data:")} == {(tmp_path / "page.html").as_uri()}
