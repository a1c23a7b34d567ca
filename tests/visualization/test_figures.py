from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from showattendtell.types import Caption, Dataset, Example
from showattendtell.visualization.figures import draw_curves, draw_data_sheet, read_metrics


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    examples = []
    for number in range(9):
        path = tmp_path / f"{number}.png"
        Image.fromarray(np.full((30, 40, 3), 20 * number, dtype=np.uint8)).save(path)
        caption = Caption(("a", "dog") * (number + 1), written="a $5% off and $10 coupon")  # no formula
        examples.append(Example(path.name, str(path), (caption,)))
    return Dataset("own", {"train": tuple(examples[:8]), "val": (), "test": tuple(examples[8:])})


def test_a_picture_is_drawn_also_with_an_empty_split_and_a_broken_image(dataset: Dataset, tmp_path: Path):
    (tmp_path / "0.png").write_bytes(b"broken")
    with Image.open(BytesIO(draw_data_sheet(dataset))) as picture:
        assert picture.size == (1100, 700)


LOG = """epoch,step,train/nll_per_word,val/bleu4,val/nll_per_word
0,9,,12.5,3.5
0,9,4.0,,
1,19,,14.0,3.25
1,19,3.75,,
"""


def test_rows_of_one_epoch_are_put_together(tmp_path: Path):
    (tmp_path / "metrics.csv").write_text(LOG)
    assert read_metrics(tmp_path / "metrics.csv") == {
        "train/nll_per_word": {1: 4.0, 2: 3.75},
        "val/bleu4": {1: 12.5, 2: 14.0},
        "val/nll_per_word": {1: 3.5, 2: 3.25},
    }


def test_the_curve_is_a_picture(tmp_path: Path):
    (tmp_path / "metrics.csv").write_text(LOG)
    draw_curves(read_metrics(tmp_path / "metrics.csv"), tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.width > 2 * picture.height
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 20)) > 50
