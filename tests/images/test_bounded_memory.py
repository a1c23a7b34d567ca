"""The memory that hostile pictures take, of which a file of a few kilobytes can have millions of pixels."""

import subprocess
import sys

import pytest
from PIL import Image

RUN = """
import os, resource, sys
import numpy as np
from PIL import Image
from showattendtell.images.reading import Preprocessing, open_image, read_pixels
from showattendtell.types import Box, CaptionOutput
from showattendtell.visualization.figures import encode
from showattendtell.visualization.pages import ImageCaptions
Preprocessing(64, 64, (0.5,) * 3, (0.5,) * 3, crop_mode="squash")(Image.new("RGB", (64, 80)))
def drawn(photograph, words):
    caption = CaptionOutput((1,) * words, np.zeros(words), np.ones((words, 2, 2)), np.ones(words), ("dog",) * words)
    encode(ImageCaptions("", photograph, Box(0, 0, 1, 1), (caption,)).plot())
drawn(Image.new("RGB", (64, 64)), 1)
for file, code in zip(sys.argv[1::2], sys.argv[2::2]):
    process = os.fork()
    if not process:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        exec(code)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000, flush=True)
        os._exit(0)
    os.waitpid(process, 0)
"""
"""Of each file and code, in a process of its own, the megabytes by which the memory grows."""

SQUASH = 'Preprocessing(320, 320, (0.5,) * 3, (0.5,) * 3, crop_mode="squash")(read_pixels(file))'
OPEN = "open_image(file)"
FIGURE = "drawn(open_image(file), 8)"


PASSES = [("squashed", SQUASH, 45), ("drawn", FIGURE, 60)]
LINES = {"line": (1, 60_000), "row": (60_000, 1)}
CASES = {f"{size}, {name}": (f"{size}.png", code, most) for size in LINES for name, code, most in PASSES}
CASES |= {"16 bits": ("I;16.png", OPEN, 16 * 9 + 50), "floats": ("F.tif", OPEN, 16 * 15 + 50)}
"""A file, what is done with it, and the megabytes that it may take.

A line of pixels takes no more than a photograph; with its short side resized first, it would take 58 MB. Of pictures of
many bits and 16 megapixels the file, the array, and grey and RGB of 8 bits are in memory at once.
"""


@pytest.fixture(scope="module")
def growths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("pictures")
    for name, size in LINES.items():
        Image.new("RGB", size).save(folder / f"{name}.png")
    Image.new("I;16", (4000, 4000)).save(folder / "I;16.png")
    Image.new("F", (4000, 4000)).save(folder / "F.tif")
    line = [part for file, code, _ in CASES.values() for part in (str(folder / file), code)]
    done = subprocess.run([sys.executable, "-c", RUN, *line], capture_output=True, text=True, check=True)
    return dict(zip(CASES, map(float, done.stdout.split()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_picture_takes_a_few_bytes_for_a_pixel(growths: dict[str, float], name: str):
    assert growths[name] < CASES[name][2]
