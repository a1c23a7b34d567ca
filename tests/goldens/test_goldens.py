"""Losses, captions and scores are those that were recorded in `goldens.json`.

`python tests/goldens` compares exactly, on one machine. After an intended change, it records the file again.
"""

import json
from pathlib import Path

import pytest
from golden_differences import TOLERANCE, differences
from golden_sections import FAST, SECTIONS, MissingDataError

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDED = json.loads(Path(__file__).with_name("goldens.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("goldens")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in SECTIONS]
)
def test_recorded_values(name: str, folder: Path):
    try:
        measured = SECTIONS[name](folder)
    except MissingDataError as missing:
        pytest.skip(str(missing))
    assert list(differences(RECORDED[name], measured, TOLERANCE)) == []


def test_a_resumed_run_is_the_uninterrupted_one():
    assert RECORDED["train, resumed"] == RECORDED["train, soft"]


def test_differences_are_found():
    expected = {"losses": [-300.0, 1.0], "caption": "a dog"}
    assert list(differences(expected, {"losses": [-300.0, 1.02], "caption": "a dog"}, TOLERANCE)) == []
    changed = {"losses": [-300.0, 1.04], "caption": "a cat", "more": 1}
    assert len(list(differences(expected, changed, TOLERANCE))) == 3
    assert len(list(differences(expected, {"losses": [-300.0]}, TOLERANCE))) == 2
