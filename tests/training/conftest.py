"""An uninterrupted run that others are compared with. Its curves are not drawn, which takes longer than its epochs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_runs import Kills
from small_training import small_config, small_run


@pytest.fixture(autouse=True, scope="session")
def without_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("showattendtell.training.progress.draw_curves", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, without_pictures: None) -> Path:
    """The folder of the run; `copies` next to it has what a kill would leave at each moment."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "whole"
    small_run(small_config(), folder, callbacks=[Kills(folder, folder.with_name("copies"))])
    return folder
