"""The benchmark harness: goals, comparison with the last run, stored figures, and scripts that fail."""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.harness import script
from benchmarks.harness.figures import Figure, verdict
from benchmarks.harness.machine import Code, Machine
from benchmarks.harness.results import Run, last_comparable, store

from benchmarks import __main__ as everything

SPEED, MEMORY, TIME = (
    Figure("speed", 4.0, goal=5),
    Figure("memory", 120.0, "MB", "lower", goal=100),
    Figure("a step", 500.0, "ms", "lower"),
)
RUN = Run(
    "training_step",
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    Machine("Zen 4", 2, 1),
    Code("abc1234", True, {"torch": "2.13.0"}),
    {"threads": 1},
    12.5,
    (SPEED, MEMORY, TIME, Figure("bf16", None, goal=7.5, note="no bf16 here")),
)


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (SPEED, "missed by 20 %"),
        (MEMORY, "missed by 20 %"),
        (replace(SPEED, value=5.0), "reached"),
        (replace(MEMORY, value=100.0), "reached"),
        (replace(MEMORY, value=1.0, goal=0), "missed"),
        (RUN.figures[-1], "not measured: no bf16 here"),
    ],
)
def test_a_goal_is_reached_or_missed_by_a_share_of_it(figure: Figure, expected: str):
    assert verdict(figure) == expected


def test_a_run_is_compared_with_the_newest_earlier_one_of_its_script_machine_and_options(tmp_path: Path):
    def later(minutes: int) -> datetime:
        return RUN.time + timedelta(minutes=minutes)

    store(RUN, tmp_path)
    store(replace(RUN, time=later(1), seconds=1.0), tmp_path)
    store(replace(RUN, time=later(2), machine=Machine("Zen 4", 2, 2)), tmp_path)
    store(replace(RUN, time=later(3), options={"threads": 2}), tmp_path)
    store(replace(RUN, time=later(4), script="growth"), tmp_path)
    store(replace(RUN, time=later(9)), tmp_path)
    (tmp_path / "training_step-2026-01-02-030909.json").write_text('{"figures": 3}')
    last = last_comparable(replace(RUN, time=later(5)), tmp_path)
    assert last is not None
    assert last.time == later(1)
    assert last_comparable(RUN, tmp_path) is None


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    return tmp_path


def test_every_script_is_among_all_and_all_take_less_than_ten_minutes():
    files = Path(everything.__file__).parent.glob("*.py")
    scripts = {file.stem for file in files if "main(measure" in file.read_text()}
    assert scripts - {"published", "calls"} == set(everything.SCRIPTS)  # it needs a clone of the port
    assert all(find_spec(f"benchmarks.{name}") for name in everything.SCRIPTS)
    assert sum(everything.BUDGETS.values()) < 600
