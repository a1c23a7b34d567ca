"""The memory that hostile pictures take, of which a file of a few kilobytes can have millions of pixels."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

RUN = """
import resource, sys
import numpy as np
from PIL import Image
from showattendtell.data.images import Preprocessing, open_image, read_pixels
from showattendtell.types import Box
from showattendtell.visualization.heatmaps import heatmap_figure
from showattendtell.visualization.figures import encode
from showattendtell.visualization.rendering import Drawing
Preprocessing(64, 64, (0.5,) * 3, (0.5,) * 3, crop_mode="squash")(Image.new("RGB", (64, 80)))
small = Image.new("RGB", (64, 64))
encode(heatmap_figure(Drawing(small, ["dog"], np.ones((1, 2, 2)), np.ones(1), Box(0, 0, 64, 64), "dog")))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
file = sys.argv[1]
exec(sys.argv[2])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000)
"""

SQUASH = 'Preprocessing(320, 320, (0.5,) * 3, (0.5,) * 3, crop_mode="squash")(read_pixels(file))'
OPEN = "open_image(file)"
FIGURE = """
photograph = open_image(file)
seen = Box(0, 0, *photograph.size)
encode(heatmap_figure(Drawing(photograph, ["dog"] * 8, np.ones((8, 2, 2)), np.ones(8), seen, "dog")))
"""


def growth(file: Path, code: str) -> float:
    """Megabytes by which the memory of a process grows."""
    done = subprocess.run([sys.executable, "-c", RUN, str(file), code], capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1)])
@pytest.mark.parametrize(("code", "megabytes"), [(SQUASH, 20), (FIGURE, 60)])
def test_a_line_of_pixels_takes_no_more_than_a_photograph(
    tmp_path: Path, size: tuple[int, int], code: str, megabytes: float
):
    Image.new("RGB", size).save(tmp_path / "line.png")
    assert growth(tmp_path / "line.png", code) < megabytes


@pytest.mark.parametrize(("mode", "suffix", "most"), [("I;16", "png", 9), ("F", "tif", 15)])
def test_pictures_of_many_bits_take_a_few_bytes_for_a_pixel(tmp_path: Path, mode: str, suffix: str, most: float):
    """16 megapixels; the file, the array, and grey and RGB of 8 bits are in memory at once."""
    Image.new(mode, (4000, 4000)).save(tmp_path / f"deep.{suffix}")
    assert growth(tmp_path / f"deep.{suffix}", OPEN) < 16 * most + 50
