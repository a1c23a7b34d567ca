"""Run all benchmarks and compare their figures with their goals.

Each script runs in its own process. If one fails, the others still run.
"""

import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import NamedTuple

from rich.console import Console
from rich.rule import Rule

from benchmarks.harness.figures import goal_table
from benchmarks.harness.results import RESULTS, stored
from benchmarks.harness.script import CANNOT_RUN, console

BUDGETS = {
    "training_step": 100,
    "growth": 70,
    "output_layer": 12,
    "generation": 72,
    "extraction": 52,
    "startup": 45,
    "decoding": 12,
    "features": 18,
    "loader": 16,
    "sampler": 8,
    "recompute": 34,
    "busy": 150,
}
"""Seconds per script on two cores, together less than ten minutes."""

GPU_BUDGETS = {"gpu_step": 60, "gpu_training": 300, "gpu_finetuning": 150}
"""Seconds per script on a GPU; without one, these scripts end after a few seconds."""

SCRIPTS = BUDGETS | GPU_BUDGETS

TIMEOUT_FACTOR = 10
"""A script is stopped after this multiple of its budget."""


class Outcome(NamedTuple):
    """Result of a script: its status (`done`, `cannot run here`, or an error) and duration."""

    script: str
    status: str
    seconds: float

    @property
    def failed(self) -> bool:
        return self.status not in ("done", "cannot run here")


def main() -> None:
    parser = ArgumentParser("python -m benchmarks", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help=f"scripts to run (default: all): {', '.join(SCRIPTS)}")
    scripts = parser.parse_args().scripts or list(SCRIPTS)
    unknown = [script for script in scripts if script not in SCRIPTS]
    if unknown:
        parser.error(f"unknown script {unknown[0]}; choose from {', '.join(SCRIPTS)}")
    screen = console()
    outcomes = [run(script, f"{number} of {len(scripts)}", screen) for number, script in enumerate(scripts, 1)]
    summarize(outcomes, screen)
    sys.exit(any(outcome.failed for outcome in outcomes))


def run(script: str, position: str, screen: Console) -> Outcome:
    screen.print(Rule(f"{position}: {script}, about {SCRIPTS[script]} s", align="left"))
    started = time.perf_counter()
    try:
        code = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{script}"], timeout=TIMEOUT_FACTOR * SCRIPTS[script], check=False
        ).returncode
        status = {0: "done", CANNOT_RUN: "cannot run here"}.get(code, f"failed with exit status {code}")
    except subprocess.TimeoutExpired:
        status = f"stopped after {TIMEOUT_FACTOR} times its budget"
    return Outcome(script, status, time.perf_counter() - started)


def summarize(outcomes: list[Outcome], screen: Console) -> None:
    """Print the goals of all scripts, and the status of each script."""
    done = [outcome.script for outcome in outcomes if outcome.status == "done"]
    figures = [(script, figure) for script in done for figure in stored(script, RESULTS)[-1].figures]
    screen.print(Rule("all", align="left"))
    if any(figure.goal is not None for _, figure in figures):
        screen.print(goal_table(figures))
    for script, status, seconds in outcomes:
        overrun = f", over its budget of {SCRIPTS[script]} s" if seconds > SCRIPTS[script] else ""
        screen.print(f"{script}: {status}, {seconds:.0f} s{overrun}")
    screen.print(f"all: {sum(outcome.seconds for outcome in outcomes):.0f} s")


if __name__ == "__main__":
    main()
