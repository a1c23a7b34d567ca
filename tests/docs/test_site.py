"""The documentation as a site: it builds without a warning, knows every command and setting, and fetches nothing."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from documentation import ROOT

from showattendtell.__main__ import COMMANDS
from showattendtell.config.compose import read_command
from showattendtell.config.help import find_listed

pytestmark = pytest.mark.skipif(
    not (find_spec("mkdocs") and find_spec("ziamath")), reason="needs the extra docs, which make setup installs"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr + built.stdout
    return folder


class Links(HTMLParser):
    """Where a page leads, what it loads, and the names of its places."""

    def __init__(self, page: Path):
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        elif given.get("src") or (tag == "link" and "href" in given):
            self.loads.append(given.get("src") or given["href"])


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_a_place_that_are_there(site: Path):
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    broken = []
    for page, links in pages.items():
        for link in (*links.leads, *links.loads):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = target.exists() and (not parts.fragment or parts.fragment in pages[target].places)
            broken += [] if there else [(page.name, link)]
    assert len(pages) > 30
    assert broken == []


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path):
    foreign = {load for page in site.rglob("*.html") for load in Links(page).loads if urlsplit(load).scheme == "https"}
    assert foreign == set()
    styles = "".join(style.read_text(encoding="utf-8") for style in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?https?:", styles) == []


@pytest.mark.slow
def test_the_reference_has_every_command_and_option_with_its_settings(site: Path):
    for command in COMMANDS:
        assert (site / f"reference/commands/{command}.html").is_file()
    for group, options in find_listed(read_command("train", [])[0].hydra.runtime.choices).items():
        page = Links(site / f"reference/choices/{group.replace('/', '-')}.html")
        assert {option.replace("/", "").lower() for option in options} <= page.places
    text = (site / "reference/choices/attention.html").read_text(encoding="utf-8")
    assert "attention.num_samples" in text
    assert "number from 0 to 1" in text
