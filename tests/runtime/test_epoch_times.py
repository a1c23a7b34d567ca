"""How long training took, as its file has it."""

from pathlib import Path

import pytest

from showattendtell.runtime.epoch_times import duration, read_times, write_times
from showattendtell.visualization.result_files import time_figures


def test_the_times_of_epochs_are_read_as_they_were_written(tmp_path: Path):
    write_times([61.5, 0.0004, 3000], tmp_path)
    assert read_times(tmp_path) == [61.5, 0.0, 3000.0]


def test_a_checkpoint_has_the_minutes_of_its_run_or_none(tmp_path: Path):
    assert time_figures(tmp_path / "best.ckpt") == {}
    write_times([90, 30], tmp_path)
    assert time_figures(tmp_path / "best.ckpt") == {"training_minutes": 2.0}


@pytest.mark.parametrize(("seconds", "told"), [(41.4, "41 s"), (99.9, "100 s"), (720, "12 min"), (11520, "3.2 h")])
def test_a_duration_is_told_in_its_unit(seconds: float, told: str):
    assert duration(seconds) == told
