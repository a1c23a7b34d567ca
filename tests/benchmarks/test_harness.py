"""The benchmark harness: comparison with the last run, and the list of scripts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness.figures import Figure
from benchmarks.harness.machine import Code, Machine
from benchmarks.harness.results import Run, last_comparable, store

from benchmarks import __main__ as everything

RUN = Run(
    "training_step",
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    Machine("Zen 4", 2, 1),
    Code("abc1234", True, {"torch": "2.13.0"}),
    {"threads": 1},
    12.5,
    (Figure("speed", 4.0, goal=5),),
)


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


def test_every_script_is_among_all_and_all_take_less_than_ten_minutes():
    files = Path(everything.__file__).parent.glob("*.py")
    scripts = {file.stem for file in files if "main(measure" in file.read_text()}
    assert scripts - {"published", "calls"} == set(everything.SCRIPTS)  # it needs a clone of the port
    assert all(find_spec(f"benchmarks.{name}") for name in everything.SCRIPTS)
    assert sum(everything.BUDGETS.values()) < 600
