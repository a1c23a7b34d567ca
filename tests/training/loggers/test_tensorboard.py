from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from showattendtell.training.loggers.dashboard import Histogram, ImagePanel

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from showattendtell.training.loggers.tensorboard import TensorBoardBackend


@pytest.fixture
def read(tmp_path: Path) -> EventAccumulator:
    """What TensorBoard itself reads of a run that was shown everything."""
    board = TensorBoardBackend(tmp_path / "tensorboard", {"seed": 7})
    board.log_figures({"val/bleu4": 12.5, "epoch": 0}, 10)
    board.log_figures({"val/bleu4": 14.0, "epoch": 1}, 20)
    board.log_panels([ImagePanel("dog.jpg", "a dog runs", ("a dog", "it runs"), Image.new("RGB", (30, 20), "red"))], 10)
    board.log_panels([ImagePanel("gone.jpg", "a cat", (), None)], 10)
    board.log_histograms({"entropy": Histogram(np.array([3, 1]), np.array([0.0, 1.0, 2.0]))}, 10)
    board.log_best([], {"val/bleu4": 14.0})
    assert board.close(True).endswith(f"tensorboard --logdir {tmp_path}")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    return events


def test_tensorboard_reads_the_figures(read: EventAccumulator):
    assert [(event.step, event.value) for event in read.Scalars("val/bleu4")] == [(10, 12.5), (20, 14.0)]


def test_tensorboard_reads_pictures_captions_and_configuration(read: EventAccumulator):
    [picture] = read.Images("val/captions/dog.jpg")
    assert (picture.width, picture.height, picture.step) == (30, 20, 10)
    assert read.Tags()["images"] == ["val/captions/dog.jpg"]
    texts = {
        tag.removesuffix("/text_summary"): read.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in read.Tags()["tensors"]
    }
    assert texts["val/captions/dog.jpg"] == "**a dog runs**\n\n- a dog\n- it runs"
    assert '"seed": 7' in texts["config"]
    assert "14.0" in texts["best"]


def test_tensorboard_reads_the_histogram(read: EventAccumulator):
    [event] = read.Histograms("entropy")
    value = event.histogram_value
    assert (value.min, value.max, value.num, value.sum, value.sum_squares) == (0, 2, 4, 3, 3)
    assert list(zip(value.bucket_limit, value.bucket, strict=True)) == [(1, 3), (2, 1)]
