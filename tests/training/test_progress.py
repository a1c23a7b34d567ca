"""How long epochs took, whatever interrupted them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from showattendtell.runtime.files import read_times
from showattendtell.training.callbacks import progress
from showattendtell.training.callbacks.progress import EpochTimes


def test_an_epoch_that_was_interrupted_has_the_seconds_of_the_parts_that_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    trainer: Any = SimpleNamespace(fast_dev_run=False)
    module: Any = None
    killed = EpochTimes(tmp_path)
    killed.on_train_start(trainer, module)
    now = 1060.0
    killed.on_train_epoch_end(trainer, module)
    now = 1085.0
    saved = killed.state_dict()
    now = 1099.0  # what is done from here to the kill is done again

    resumed = EpochTimes(tmp_path)
    resumed.load_state_dict(saved)
    now = 5000.0
    resumed.on_train_start(trainer, module)
    now = 5030.0
    resumed.on_train_epoch_end(trainer, module)
    assert read_times(tmp_path) == [60.0, 25.0 + 30.0]
