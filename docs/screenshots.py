"""Make the screenshots of all pages, and the pictures of the README; takes about 10 minutes on two cores.

python docs/screenshots.py [FOLDER]       FOLDER keeps the runs, and is reused; by default a temporary one

Needs a Chromium: that of the system, or that of `playwright install chromium`. Each screenshot shows a page at widths
of 1280 and 390 pixels, in light or in dark colors.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/figures"
EXAMPLES = ROOT / "src/showattendtell/visualization/examples"
PHOTOGRAPHS = [*(EXAMPLES / name for name in ("skater.jpg", "riders.jpg", "dog.jpg")), FIGURES / "bird.jpg"]
"""All are licensed CC BY 2.0; extensions/serving.md names their sources."""

SPLIT = ["split=test", "num_images=8", "output=compare.html"]
SMALL = ["dataset.train=500", "dataset.val=40", "dataset.test=60"]
COMMANDS = [
    ["train", *SMALL, "trainer.max_epochs=4", "hydra.run.dir=runs/soft"],
    ["train", *SMALL, "trainer.max_epochs=4", "hydra.run.dir=runs/hard", "attention=hard"],
    ["evaluate", "checkpoint=runs/soft/best.ckpt"],
    ["evaluate", "checkpoint=runs/hard/best.ckpt"],
    ["report", "runs=runs", "output=table.html"],
    ["caption", f"images=[{','.join(map(str, PHOTOGRAPHS))}]", "formats=[html]", "output=photographs"],
    ["caption", f"images={FIGURES}/skater.jpg", "formats=[html,png,webp]", "output=photograph"],
    ["caption", "checkpoint=runs/soft/best.ckpt", "compare=runs/hard/best.ckpt", "names=[soft,hard]", *SPLIT],
    ["export", "checkpoint=flickr8k_soft", "formats=[web]", "precision=float16", "output=exported"],
]
PAGES = {
    "caption": "photographs/index.html",
    "single": "photograph/index.html",
    "compare": "compare.html",
    "table": "table.html",
}
"""Names of the screenshots, and the pages that the commands write."""
SERVED = {
    "serve": ["showattendtell.serve", "port=0"],
    "web": ["http.server", "0", "--bind", "127.0.0.1", "--directory", "exported/web"],
}
"""Names of the screenshots of pages that need a server, and the command of the server."""

HEATMAP, ANIMATION = "photograph/skater.png", "photograph/skater.webp"

WIDTHS = (1280, 390)
HEIGHT = 900
HEIGHTS = {"table": 460}
GAP = 20
QUALITY = 78


def run(command: list[str], folder: Path) -> None:
    """Run a command, unless it has run in this folder before."""
    done = folder / "done.txt"
    line = " ".join(command)
    if done.is_file() and line in done.read_text().splitlines():
        return
    subprocess.run([sys.executable, "-m", f"showattendtell.{command[0]}", *command[1:]], cwd=folder, check=True)
    with done.open("a") as file:
        file.write(line + "\n")


def take(browser: Browser, address: str, name: str) -> None:
    """Write the light and the dark screenshot of a page."""
    for scheme in ("light", "dark"):
        height = HEIGHTS.get(name, HEIGHT)
        both = Image.new("RGB", (sum(WIDTHS) + GAP, height), "#808080")
        for width, left in zip(WIDTHS, (0, WIDTHS[0] + GAP), strict=True):
            viewport = {"width": width, "height": height}
            page = browser.new_page(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
            page.goto(address)
            if name == "caption" and page.locator("[name=order]").is_visible():
                page.locator("[name=order]").select_option("confidence")
            show_a_word(page)
            both.paste(Image.open(BytesIO(page.screenshot())), (left, 0))
            page.close()
        both.save(FIGURES / f"{name}-{scheme}.webp", quality=QUALITY, method=6)


@contextmanager
def serving(command: list[str], folder: Path) -> Iterator[str]:
    """Run a server in a folder; yields its address, which is in the first line that it prints."""
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    line = [sys.executable, "-m", *command]
    with subprocess.Popen(line, cwd=folder, env=unbuffered, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://[^\s)]+", server.stdout.readline())
            assert found, "the server did not start"
            yield found[0]
        finally:
            server.terminate()


def show_a_word(page: Page) -> None:
    """Caption an example on a server's page; then show the map of a word of the first photograph: the second word
    of a caption, or the longest that all models have."""
    if page.locator("[data-example]").count():
        page.locator("[data-example]").first.click()
        page.locator(".word").first.wait_for(timeout=60_000)
    if page.locator(".word").count():
        captions = page.locator(".card").first.locator(".caption").all()
        first, *others = [caption.locator(".word").all_inner_texts() for caption in captions]
        common = set(first).intersection(*others)
        number = first.index(max(sorted(common), key=len)) if others and common else 1
        page.locator(".word").nth(number).focus()
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(500)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for command in COMMANDS:
        run(command, folder)
    Image.open(folder / HEATMAP).convert("RGB").save(FIGURES / "skater-heatmap.webp", quality=QUALITY, method=6)
    shutil.copy(folder / ANIMATION, FIGURES / "skater-attention.webp")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        for name, page in PAGES.items():
            take(browser, (folder / page).absolute().as_uri(), name)
        for name, command in SERVED.items():
            with serving(command, folder) as address:
                take(browser, address, name)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as temporary:
            main(Path(temporary))
