"""Photographs at URLs."""

import time

import requests
from PIL import Image
from urllib3.exceptions import HTTPError

from showattendtell import __version__
from showattendtell.data.image_limits import FILE_MEGABYTES, MEGAPIXELS
from showattendtell.data.images import decode_image
from showattendtell.errors import UserError, first_line

SECONDS = 30.0
"""Maximum time to fetch a photograph."""

STALLED = 10.0
"""Seconds without data after which a connection counts as broken."""

REDIRECTS = 5
CHUNK = 2**16

HEADERS = {"User-Agent": f"showattendtell/{__version__}", "Accept": "image/*", "Accept-Encoding": "identity"}
"""Several sites reject the default name of the library."""


def fetch_image(url: str) -> Image.Image:
    """Fetch a photograph over http or https, and return it as upright RGB.

    Redirects are followed to http and https only.

    Raises:
        UserError: it cannot be fetched within `SECONDS`, is larger than `FILE_MEGABYTES` or `MEGAPIXELS`, or is not an
            image.
    """
    try:
        content = _fetch(url)
    except (requests.RequestException, HTTPError) as error:
        raise UserError(f"image {url} cannot be fetched ({_reason(error)}); check the URL and the network") from None
    return decode_image(content, url, max_pixels=1e6 * MEGAPIXELS)


def _fetch(url: str) -> bytes:
    deadline, max_bytes = time.monotonic() + SECONDS, round(1e6 * FILE_MEGABYTES)
    content = bytearray()
    with requests.Session() as session:
        session.max_redirects = REDIRECTS
        with session.get(url, headers=HEADERS, stream=True, timeout=STALLED) as response:
            if not response.ok:
                answer = f"{response.status_code} {response.reason}".strip()
                raise UserError(f"image {url} cannot be fetched (the server answers {answer}); check the URL")
            # `read1` returns what has come, so that a slow server does not delay the check of the time
            while chunk := response.raw.read1(CHUNK):
                content += chunk
                if len(content) > max_bytes:
                    raise UserError(f"image {url} has more than {FILE_MEGABYTES:g} MB; fetch it, and reduce it")
                if time.monotonic() > deadline:
                    raise UserError(f"image {url} took longer than {SECONDS:g} seconds; fetch it with another program")
    return bytes(content)


def _reason(error: BaseException) -> str:
    """Return the root cause of an error, such as `Connection refused`."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or first_line(error)
