from pathlib import Path

from PIL import Image

from showattendtell.visualization.figures import draw_curves, read_metrics

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
