"""The page of an export, in a Chromium: what it sees, its captions, its maps, and how it works without a network."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from axe import faults
from chromium import started_browser
from PIL import Image
from repository import SHARED
from slow_cases import slow_after
from small_models import small_model

import showattendtell
from showattendtell.data.images import CropMode, Preprocessing
from showattendtell.decoding.image_captioner import Calibration
from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.extensions.export.formats import write_graphs
from showattendtell.extensions.export.graphs import ExportModel, export_model
from showattendtell.extensions.export.packages import RUNTIME, VERSION, find_runtime, write_web
from showattendtell.extensions.export.run_onnx import CaptionedPhotograph
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.tracing import lacks_onnx

pytestmark = pytest.mark.skipif(lacks_onnx() != "", reason="needs the extra onnx")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which make setup installs")
SECONDS = 900


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of onnxruntime-web, from npm."""
    try:
        return find_runtime(None, tmp_path_factory.mktemp("cache"))
    except UserError as fault:
        pytest.skip(f"needs onnxruntime-web ({fault})")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ONNX graphs of a small calibrated model, with the script that runs them."""
    folder, weights = tmp_path_factory.mktemp("exported"), tmp_path_factory.mktemp("weights") / "best.ckpt"
    weights.touch()
    small = small_model()
    width = small.encoder.region_dim
    directions, _ = torch.linalg.qr(torch.randn(width, 2))
    calibration = Calibration(torch.tensor([0.8, 0.4, -0.5]), torch.zeros(width), directions, torch.tensor(2.0))
    with plain_torch():
        model = export_model("small", small, weights, 8, calibration)
        write_graphs(folder, model)
    return folder


def small_web_model(exported: Path) -> tuple[ExportModel, Path]:
    card = json.loads((exported / "captioner.json").read_text(encoding="utf-8"))
    return ExportModel("small", small_model(), None, {}, card), exported


@pytest.fixture(scope="module")
def site(exported: Path, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "web"
    model, graphs = small_web_model(exported)
    write_web(folder, [(model, graphs), (model._replace(name="other <b>"), graphs)], runtime, "")
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


class Server:
    """A server of static files that can be stopped."""

    def __init__(self, folder: Path):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser with a camera that films a test picture, and with WebGPU, which runs on the processor."""
    camera = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with started_browser(*camera, "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader") as browser:
        yield browser


@pytest.fixture
def server(site: Path) -> Iterator[Server]:
    server = Server(site)
    yield server
    server.stop()


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, server: Server) -> Iterator[OpenPage]:
    """Open the page in a new context, and wait until its models are loaded."""
    contexts = []

    def opened(**settings: Any) -> Any:
        context = browser.new_context(**settings)
        contexts.append(context)
        tab = context.new_page()
        tab.goto(server.address)
        wait_until_loaded(tab)
        return tab

    yield opened
    for context in contexts:
        context.close()


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


def draw(folder: Path, name: str, size: tuple[int, int], mode: str = "RGB", **saved: Any) -> Path:
    """A drawing with edges and slopes."""
    across, down = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    pixels = np.stack([across % 256, (3 * down) % 256, 255 * ((across // 7 + down // 5) % 2)], axis=2).astype(np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray((across % 256).astype(np.uint8)))
    image.save(folder / name, **saved)
    return folder / name


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.fixture
def drawings(tmp_path: Path) -> list[Path]:
    return [
        draw(tmp_path, "wide.png", (640, 211)),
        draw(tmp_path, "small.png", (40, 31)),
        draw(tmp_path, "strip.png", (900, 20)),
        draw(tmp_path, "grey.png", (333, 217), "L"),
        draw(tmp_path, "see-through.png", (320, 240), "RGBA"),
        draw(tmp_path, "turned.jpg", (320, 240), exif=turned()),
        draw(tmp_path, "some.webp", (200, 300), lossless=True),
        draw(tmp_path, "some.gif", (200, 300)),
        draw(tmp_path, "some.bmp", (201, 299)),
    ]


def test_the_page_writes_the_captions_of_the_script(
    open_page: OpenPage, drawings: list[Path], exported: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_onnx, "__file__", str(exported / "run_onnx.py"))
    tab = open_page()
    caption(tab, *drawings)
    seen = set()
    for path in drawings:
        expected: CaptionedPhotograph = run_onnx.caption(path)
        words, maps, confidence = shown(tab.locator(f'article[aria-label="{path.name}"]'))
        assert words == expected.words
        alpha = expected.attention.reshape(len(words), -1)
        # transparent pixels are blended in another rounding
        np.testing.assert_allclose(maps, 255 * alpha / alpha.max(axis=1, keepdims=True), atol=2.5)
        assert confidence == pytest.approx(expected.confidence, abs=0.01)
        seen.add(maps.tobytes())
    assert len(seen) > 5


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_maps_are_placed_on_what_the_encoder_sees(open_page: OpenPage, crop_mode: CropMode):
    tab, settings = open_page(), Preprocessing(73, 64, (0.5,) * 3, (0.5,) * 3, crop_mode=crop_mode)
    for width, height in ((640, 211), (211, 640), (300, 300)):
        seen = tab.evaluate("given => seenPart(...given)", [width, height, settings._asdict()])
        assert seen == pytest.approx(settings.crop_box(width, height).scaled(1 / width, 1 / height))


@pytest.mark.slow
def test_the_page_runs_the_encoder_on_a_gpu_where_there_is_one(
    browser: Any, exported: Path, runtime: Path, drawings: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_onnx, "__file__", str(exported / "run_onnx.py"))
    model = small_web_model(exported)
    write_web(tmp_path / "web", [model], runtime, "", webgpu=True)
    server = Server(tmp_path / "web")
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(server.address)
        wait_until_loaded(tab)
        assert tab.locator("#loading").inner_text() == "ready, on the GPU"
        caption(tab, drawings[0])
        words, maps, confidence = shown(tab.locator(".card").first)
    expected = run_onnx.caption(drawings[0])
    alpha = expected.attention.reshape(len(words), -1)
    assert words == expected.words
    np.testing.assert_allclose(maps, 255 * alpha / alpha.max(axis=1, keepdims=True), atol=2.5)
    assert confidence == pytest.approx(expected.confidence, abs=0.01)
    server.stop()


def words_and_maps(caption: Any) -> tuple[tuple[str, ...], np.ndarray]:
    """Words of a caption by the package, and its maps in levels (T, L)."""
    alpha = caption.attention.reshape(len(caption.attention), -1)[: len(caption.words)]
    return caption.words, 255 * alpha / alpha.max(axis=1, keepdims=True)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_the_page_of_the_bundled_model_writes_pytorchs_captions(
    browser: Any, runtime: Path, run_forked: Any, tmp_path: Path
):
    """20 photographs of Flickr8k's test split, with the captions and maps of `showattendtell.load`."""
    names = (SHARED / "flickr8k/Flickr_8k.testImages.txt").read_text().split()[::50]
    photographs = [SHARED / "flickr8k/images" / name for name in names]
    settings = ["checkpoint=flickr8k_soft", "formats=[web]", f"onnxruntime_web={runtime}", "output=out"]
    done = run_forked("export", *settings, folder=tmp_path)
    assert done.status == 0, done.err
    server, model = Server(tmp_path / "out/web"), showattendtell.load("flickr8k_soft", device="cpu")
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(server.address)
        wait_until_loaded(tab)
        start = time.monotonic()
        caption(tab, photographs[0])
        print(f"first caption after {time.monotonic() - start:.1f} s")
        caption(tab, *photographs[1:])
        different = list[str]()
        for path in photographs:
            words, maps, confidence = shown(tab.locator(f'article[aria-label="{path.name}"]'), "flickr8k_soft")
            expected = model(path)
            others, levels = words_and_maps(expected)
            if tuple(words) != tuple(others):
                different.append(path.name)
                continue
            # torchvision and browsers round resized pixels differently
            assert np.abs(maps - levels).max() < 10
            assert np.abs(maps - levels).mean() < 1
            assert confidence == pytest.approx(expected.confidence, abs=0.011)
        assert len(different) <= 1, different  # two captions of nearly the same probability
    server.stop()


@pytest.mark.slow
def test_the_page_works_after_the_server_is_gone(open_page: OpenPage, server: Server, drawings: list[Path]):
    tab = open_page()
    assert tab.evaluate("navigator.serviceWorker.ready.then(worker => worker.active !== null)")
    tab.reload()  # from the service worker, with the headers for threads
    wait_until_loaded(tab)
    assert tab.evaluate("crossOriginIsolated")
    requests = []
    tab.context.on("request", lambda request: requests.append(request.url))
    caption(tab, drawings[0])
    assert [url for url in requests if url.startswith("http")] == []
    before = shown(tab.locator(".card").first)
    server.stop()
    tab.context.set_offline(True)
    tab.reload()
    wait_until_loaded(tab)
    caption(tab, drawings[0])
    after = shown(tab.locator(".card").first)
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


HOSTILE = {
    "empty.png": (b"", "is empty; choose a JPEG"),
    "page.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "is not a JPEG"),
    "text.jpg": (b"hello, this is no photograph", "is not a JPEG"),
    "header.png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not a JPEG"),
    "wide.png": (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (30_000).to_bytes(4) * 2,
        "has 30000 x 30000 pixels; choose",
    ),
    "frames.gif": (b"GIF89a" + b"\xff" * 4 + bytes(20), "has 65535 x 65535 pixels"),
    "endless.jpg": (b"\xff\xd8" + b"\xff" * 5000, "is not a JPEG"),
    "loop.jpg": (b"\xff\xd8" + b"\xff\xe0\x00\x00" * 5000, "is not a JPEG"),
}


@pytest.mark.slow
def test_a_file_that_is_no_photograph_gets_one_sentence(open_page: OpenPage, tmp_path: Path):
    for name, (content, _) in HOSTILE.items():
        (tmp_path / name).write_bytes(content)
    whole = draw(tmp_path, "whole.jpg", (300, 200)).read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[:200])
    tab = open_page()
    caption(tab, *(tmp_path / name for name in [*HOSTILE, "cut.jpg", "whole.jpg"]))
    for name, (_, sentence) in {**HOSTILE, "cut.jpg": (b"", "is")}.items():
        said = tab.locator(f'article[aria-label="{name}"] .fault').inner_text()
        assert said.startswith(f"{name} {sentence}")
        assert "\n" not in said
    assert shown(tab.locator('article[aria-label="whole.jpg"]'))[0]


@pytest.mark.parametrize(("width", "scheme"), slow_after(1, [(1280, "light"), (390, "dark")]))
def test_axe_finds_no_fault(open_page: OpenPage, drawings: list[Path], width: int, scheme: str):
    tab = open_page(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
    assert faults(tab) == []
    caption(tab, drawings[0], drawings[3])
    tab.wait_for_timeout(300)
    assert faults(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_a_caption_is_copied_and_a_picture_saved(open_page: OpenPage, drawings: list[Path], tmp_path: Path):
    tab = open_page(permissions=["clipboard-read", "clipboard-write"])
    caption(tab, drawings[0])
    panel = tab.get_by_role("group", name="small", exact=True)
    panel.get_by_role("button", name="Copy as alt text").click()
    words = shown(tab.locator(".card"))[0]
    panel.get_by_role("button", name="Copied").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()") == " ".join(words)
    with tab.expect_download() as download:
        panel.get_by_role("button", name="Save as a picture").click()
    download.value.save_as(tmp_path / "saved.png")
    with Image.open(tmp_path / "saved.png") as picture:
        assert picture.width > 600
        assert len(picture.convert("RGB").getcolors(2**20) or [0] * 2**20) > 1000
    assert download.value.suggested_filename == "wide.png"


def test_an_archive_with_another_checksum_is_refused(tmp_path: Path):
    archive = tmp_path / "runtime.tgz"
    with pytest.raises(UserError, match=rf"does not exist; run npm pack {RUNTIME}@{VERSION} where there is"):
        find_runtime(str(archive), tmp_path)
    archive.write_bytes(b"something else")
    with pytest.raises(UserError, match=rf"runtime.tgz is not {RUNTIME} {VERSION} \(its checksum differs\); remove it"):
        find_runtime(str(archive), tmp_path)
