"""Photographs from a local server: what is fetched, and the limits."""

from collections.abc import Iterator
from io import BytesIO

import pytest
from photo_server import Handler, PhotoServer, serve_photos
from PIL import Image

from showattendtell.errors import UserError
from showattendtell.images import reading
from showattendtell.images.reading import fetch_image


@pytest.fixture
def server() -> Iterator[PhotoServer]:
    with serve_photos() as running:
        content = BytesIO()
        Image.new("RGB", (40, 30), "red").save(content, "PNG")
        running.files["photo.png"] = content.getvalue()
        yield running


def test_a_file_that_is_too_large_is_reported_before_all_of_it_is_here(
    server: PhotoServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "FILE_MEGABYTES", 0.1)
    server.files["large.jpg"] = bytes(50_000_000)
    with pytest.raises(UserError, match=r"large.jpg has more than 0.1 MB"):
        fetch_image(f"{server.address}/large.jpg")


@pytest.mark.parametrize(
    ("limit", "seconds", "pause", "sentence"),
    [("SECONDS", 0.3, 0.05, "took longer than 0.3 seconds"), ("STALLED", 0.2, 2.0, "cannot be fetched .timed out.")],
)
def test_a_server_that_sends_byte_by_byte_or_nothing_is_left(
    server: PhotoServer, monkeypatch: pytest.MonkeyPatch, limit: str, seconds: float, pause: float, sentence: str
):
    monkeypatch.setattr(reading, limit, seconds)
    server.pause, server.piece = pause, 1
    with pytest.raises(UserError, match=f"photo.png {sentence}"):
        fetch_image(f"{server.address}/photo.png")


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://example.org/a.png"])
def test_a_redirect_to_another_protocol_is_not_followed(
    server: PhotoServer, monkeypatch: pytest.MonkeyPatch, target: str
):
    def redirect(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    monkeypatch.setattr(Handler, "do_GET", redirect)
    with pytest.raises(UserError, match=r"photo.png cannot be fetched .No connection adapters were found"):
        fetch_image(f"{server.address}/photo.png")
