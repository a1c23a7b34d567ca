"""Training without pictures of its curves, which take longer than its epochs."""

import pytest


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("showattendtell.training.progress.draw_curves", lambda *_: None)
