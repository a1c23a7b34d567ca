"""A Chromium without a window, where there is one or one may be installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from system_packages import installed

PROGRAMS = ["chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"]


@contextmanager
def started_browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which make setup installs")
    program = installed(lambda: next(filter(None, map(shutil.which, PROGRAMS)), None), "chromium-headless-shell")
    with playwright.sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=program)
        except playwright.Error as fault:
            pytest.skip(
                "needs a Chromium, as from `apt-get install chromium-headless-shell` or `playwright install chromium` "
                f"({str(fault).splitlines()[0]})"
            )
        yield browser
        browser.close()
