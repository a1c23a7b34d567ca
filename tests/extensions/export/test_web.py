"""The page of an export, in a Chromium: its captions, its maps, and how it works without a network."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe import faults
from chromium import started_browser
from drawings import TURNED, draw
from PIL import Image

from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.extensions.export.graphs import ExportModel
from showattendtell.extensions.export.run_onnx import CaptionedPhotograph
from showattendtell.extensions.export.web import RUNTIME, VERSION, find_runtime, write_web
from showattendtell.images.reading import CropMode, Preprocessing
from showattendtell.runtime.files import cache_folder

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which make setup installs")
SECONDS = 900


@pytest.fixture(scope="module")
def runtime() -> Path:
    """The archive of onnxruntime-web, from npm or from the cache of `make web`."""
    try:
        return find_runtime(None, cache_folder())
    except UserError as fault:
        pytest.skip(f"needs onnxruntime-web ({fault})")


@pytest.fixture(scope="module")
def site(exported: tuple[Path, ExportModel], runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two models."""
    web, (folder, model) = tmp_path_factory.mktemp("site") / "web", exported
    write_web(web, [(model, folder), (model._replace(name="other <b>"), folder)], runtime, "")
    return web


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@contextmanager
def opened(browser: Any, folder: Path, **settings: Any) -> Iterator[tuple[Any, ThreadingHTTPServer]]:
    """A tab with the page in a folder, and its server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    with server, browser.new_context(**settings) as context:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = context.new_page()
        tab.goto(f"http://127.0.0.1:{server.server_port}/")
        wait_until_loaded(tab)
        yield tab, server
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser with WebGPU, which runs on the processor."""
    with started_browser("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader") as browser:
        yield browser


@pytest.fixture(scope="module")
def tab(browser: Any, site: Path) -> Iterator[Any]:
    """The page of two models, which the tests share: loading it takes most of the time."""
    with opened(browser, site, permissions=["clipboard-read", "clipboard-write"]) as (tab, _):
        yield tab


def wait_until_loaded(tab: Any) -> None:
    tab.locator("#loading", has_text="ready").wait_for(timeout=1000 * SECONDS)


def caption(tab: Any, *files: Path) -> None:
    """Choose photographs, and wait for all captions."""
    before = tab.locator(".card").count()
    tab.set_input_files("#chooser", list(files))
    done = tab.locator(".card:not(.waiting)")
    playwright.expect(done).to_have_count(before + len(files), timeout=1000 * SECONDS)


def shown(card: Any, model: str = "small") -> tuple[list[str], np.ndarray, float]:
    """The words on a card, their maps in levels (T, L), and the confidence."""
    panel = card.get_by_role("group", name=model, exact=True)
    words = panel.locator(".word").all()
    maps = [list(base64.b64decode(word.get_attribute("data-map"))) for word in words]
    confidence = float(panel.locator(".confidence").inner_text().split()[1])
    return [word.text_content() for word in words], np.array(maps), confidence


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("drawings")
    return [
        draw(folder, "wide.png", (640, 211)),
        draw(folder, "strip.png", (900, 20)),
        draw(folder, "grey.png", (33, 27), "L"),
        draw(folder, "see-through.png", (320, 240), "RGBA"),
        draw(folder, "turned.jpg", (320, 240), exif=TURNED),
        draw(folder, "some.webp", (200, 300), lossless=True),
    ]


HOSTILE = {
    "empty.png": (b"", "is empty; choose a JPEG"),
    "page.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "is not a JPEG"),
    "text.jpg": (b"hello, this is no photograph", "is not a JPEG"),
    "header.png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not a JPEG"),
    "large.png": (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (30_000).to_bytes(4) * 2,
        "has 30000 x 30000 pixels; choose",
    ),
    "frames.gif": (b"GIF89a" + b"\xff" * 4 + bytes(20), "has 65535 x 65535 pixels"),
    "endless.jpg": (b"\xff\xd8" + b"\xff" * 5000, "is not a JPEG"),
    "loop.jpg": (b"\xff\xd8" + b"\xff\xe0\x00\x00" * 5000, "is not a JPEG"),
    "cut.jpg": (b"", "is"),  # half of a photograph
}


@pytest.fixture(scope="module")
def captioned(tab: Any, drawings: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page with the captions of the drawings, and with files that are none."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, (content, _) in HOSTILE.items():
        (folder / name).write_bytes(drawings[4].read_bytes()[:200] if name == "cut.jpg" else content)
    caption(tab, *drawings, *(folder / name for name in HOSTILE))
    return tab


def test_the_page_writes_the_captions_of_the_script(
    captioned: Any, drawings: list[Path], exported: tuple[Path, ExportModel], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_onnx, "__file__", str(exported[0] / "run_onnx.py"))
    seen = set()
    for path in drawings:
        card = captioned.locator(f'article[aria-label="{path.name}"]')
        maps = assert_like_the_script(card, path)
        assert shown(card, "other <b>")[0] == shown(card)[0]
        seen.add(maps.tobytes())
    assert len(seen) > 4


def assert_like_the_script(card: Any, path: Path) -> np.ndarray:
    """The words, maps and confidence on a card are those of the script; return the maps."""
    expected: CaptionedPhotograph = run_onnx.caption(path)
    words, maps, confidence = shown(card)
    assert words == expected.words
    alpha = expected.attention.reshape(len(words), -1)
    # transparent pixels are blended in another rounding
    np.testing.assert_allclose(maps, 255 * alpha / alpha.max(axis=1, keepdims=True), atol=2.5)
    assert confidence == pytest.approx(expected.confidence, abs=0.01)
    return maps


def test_a_file_that_is_no_photograph_gets_one_sentence(captioned: Any):
    for name, (_, sentence) in HOSTILE.items():
        said = captioned.locator(f'article[aria-label="{name}"] .fault').inner_text()
        assert said.startswith(f"{name} {sentence}")
        assert "\n" not in said


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_maps_are_placed_on_what_the_encoder_sees(tab: Any, crop_mode: CropMode):
    settings = Preprocessing(73, 64, (0.5,) * 3, (0.5,) * 3, crop_mode=crop_mode)
    for width, height in ((640, 211), (211, 640), (300, 300)):
        seen = tab.evaluate("given => seenPart(...given)", [width, height, settings._asdict()])
        assert seen == pytest.approx(settings.crop_box(width, height).scaled(1 / width, 1 / height))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_no_fault(captioned: Any, width: int, scheme: Any):
    captioned.set_viewport_size({"width": width, "height": 800})
    captioned.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    assert faults(captioned) == []
    assert captioned.evaluate("document.documentElement.scrollWidth") <= width


def test_a_caption_is_copied_and_a_picture_saved(captioned: Any, tmp_path: Path):
    card = captioned.locator('article[aria-label="wide.png"]')
    panel = card.get_by_role("group", name="small", exact=True)
    panel.get_by_role("button", name="Copy as alt text").click()
    panel.get_by_role("button", name="Copied").wait_for()
    assert captioned.evaluate("navigator.clipboard.readText()") == " ".join(shown(card)[0])
    with captioned.expect_download() as download:
        panel.get_by_role("button", name="Save as a picture").click()
    download.value.save_as(tmp_path / "saved.png")
    with Image.open(tmp_path / "saved.png") as picture:
        assert picture.width > 600
        assert len(picture.convert("RGB").getcolors(2**20) or [0] * 2**20) > 1000
    assert download.value.suggested_filename == "wide.png"


@pytest.mark.slow
def test_the_page_runs_the_encoder_on_a_gpu_where_there_is_one(
    browser: Any,
    exported: tuple[Path, ExportModel],
    runtime: Path,
    drawings: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    folder, model = exported
    monkeypatch.setattr(run_onnx, "__file__", str(folder / "run_onnx.py"))
    write_web(tmp_path / "web", [(model, folder)], runtime, "", webgpu=True)
    with opened(browser, tmp_path / "web") as (tab, _):
        assert tab.locator("#loading").inner_text() == "ready, on the GPU"
        caption(tab, drawings[0])
        assert_like_the_script(tab.locator(".card").first, drawings[0])


@pytest.mark.slow
def test_the_page_works_after_the_server_is_gone(browser: Any, site: Path, drawings: list[Path]):
    with opened(browser, site) as (tab, server):
        assert tab.evaluate("navigator.serviceWorker.ready.then(worker => worker.active !== null)")
        tab.reload()  # from the service worker, with the headers for threads
        wait_until_loaded(tab)
        assert tab.evaluate("crossOriginIsolated")
        requests = []
        tab.context.on("request", lambda request: requests.append(request.url))
        caption(tab, drawings[0])
        assert [url for url in requests if url.startswith("http")] == []
        before = shown(tab.locator(".card").first)
        server.shutdown()
        server.server_close()
        tab.context.set_offline(True)
        tab.reload()
        wait_until_loaded(tab)
        caption(tab, drawings[0])
        after = shown(tab.locator(".card").first)
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


def test_an_archive_with_another_checksum_is_refused(tmp_path: Path):
    archive = tmp_path / "runtime.tgz"
    with pytest.raises(UserError, match=rf"does not exist; run npm pack {RUNTIME}@{VERSION} where there is"):
        find_runtime(str(archive), tmp_path)
    archive.write_bytes(b"something else")
    with pytest.raises(UserError, match=rf"runtime.tgz is not {RUNTIME} {VERSION} \(its checksum differs\); remove it"):
        find_runtime(str(archive), tmp_path)
