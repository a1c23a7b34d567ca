"""The checkpoint that the start is measured with, and the whole measurement with one command."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import startup
from showattendtell import load


def test_the_checkpoint_is_loaded_and_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(startup, "WORDS", 40)
    startup.write_checkpoint(tmp_path / "best.ckpt")
    photograph, *_ = startup.draw_photographs(tmp_path)
    model = load(tmp_path / "best.ckpt", max_length=3)
    assert len(model.models[0].module.vocabulary) == 40
    assert len(model(photograph).tokens) <= 3


@pytest.mark.slow
def test_every_wait_is_measured(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("WORDS", 40), ("REPEATS", 1), ("COMMANDS", ["caption"])):
        monkeypatch.setattr(startup, name, value)
    figures = startup.measure(Namespace(threads=1)).figures
    assert [figure.name for figure in figures[:4]] == [startup.SLOWEST, startup.IMPORT, startup.CAPTION, startup.LOAD]
    assert all(figure.value and figure.value > 0 for figure in figures)
