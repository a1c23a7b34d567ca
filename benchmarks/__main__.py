"""Every speed figure that the documentation claims, one script a claim, and at the end each figure with its goal.

Every script runs in a process of its own: what fails in one is reported and leaves the others alone.
"""

import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import NamedTuple

from rich.console import Console
from rich.rule import Rule

from benchmarks.frame.figures import goal_table
from benchmarks.frame.results import RESULTS, stored
from benchmarks.frame.script import CANNOT_RUN, console

BUDGETS = {
    "training_step": 115,
    "growth": 85,
    "output_layer": 15,
    "latent_attention": 45,
    "gpu_step": 5,
    "generation": 60,
    "extraction": 45,
    "startup": 45,
    "decoding": 14,
    "features": 20,
    "loader": 25,
    "data_sets": 30,
    "sampler": 16,
    "scoring": 27,
    "checkpoints": 13,
    "recompute": 38,
}
"""The seconds that each script may take on two cores: together less than ten minutes."""

PATIENCE = 3
"""A script is ended after so many times its budget."""


class Outcome(NamedTuple):
    """How a script went: `done`, `cannot run here`, or what went wrong; and how long it took."""

    script: str
    said: str
    seconds: float

    @property
    def failed(self) -> bool:
        return self.said not in ("done", "cannot run here")


def main() -> None:
    parser = ArgumentParser("python -m benchmarks", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help=f"which to run (default: all): {', '.join(BUDGETS)}")
    scripts = parser.parse_args().scripts or list(BUDGETS)
    unknown = [script for script in scripts if script not in BUDGETS]
    if unknown:
        parser.error(f"no script is called {unknown[0]}; there are {', '.join(BUDGETS)}")
    screen = console()
    outcomes = [run(script, f"{place} of {len(scripts)}", screen) for place, script in enumerate(scripts, 1)]
    summarise(outcomes, screen)
    sys.exit(any(outcome.failed for outcome in outcomes))


def run(script: str, place: str, screen: Console) -> Outcome:
    screen.print(Rule(f"{place}: {script}, about {BUDGETS[script]} s", align="left"))
    started = time.perf_counter()
    try:
        status = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{script}"], timeout=PATIENCE * BUDGETS[script], check=False
        ).returncode
        said = {0: "done", CANNOT_RUN: "cannot run here"}.get(status, f"failed with exit status {status}")
    except subprocess.TimeoutExpired:
        said = f"ended after {PATIENCE} times its budget"
    return Outcome(script, said, time.perf_counter() - started)


def summarise(outcomes: list[Outcome], screen: Console) -> None:
    """The goals of all scripts that ran, and in a line each how every script went."""
    done = [outcome.script for outcome in outcomes if outcome.said == "done"]
    figures = [(script, figure) for script in done for figure in stored(script, RESULTS)[-1].figures]
    screen.print(Rule("all", align="left"))
    if any(figure.goal is not None for _, figure in figures):
        screen.print(goal_table(figures))
    for script, said, seconds in outcomes:
        late = f", over its budget of {BUDGETS[script]} s" if seconds > BUDGETS[script] else ""
        screen.print(f"{script}: {said}, {seconds:.0f} s{late}")
    screen.print(f"all: {sum(outcome.seconds for outcome in outcomes):.0f} s")


if __name__ == "__main__":
    main()
