"""A run of many epochs that is resumed does not grow, nor does a command that captions many photographs.

`SHOWATTENDTELL_SOAK_EPOCHS=500` makes it long. `-s` shows the figures.
"""

import os
import time
from pathlib import Path

import pytest
from runs import TINY, Run, Start, assert_done, held_out

EPOCHS = int(os.environ.get("SHOWATTENDTELL_SOAK_EPOCHS", "80"))
SETTLED = 20
"""Epochs after which everything is loaded that a run needs."""
FAST = ("formats=[jsonl]", "decoding.max_length=4")
GROWTH = 60.0
"""MB by which the process may grow from then on."""


def epochs_of(run: Path) -> int:
    times = run / "times.csv"
    return times.read_text().count("\n") - 1 if times.exists() else 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc, for the memory of a process"),
]


def test_a_resumed_run_of_many_epochs_does_not_grow(run: Run, start: Start, folder: Path):
    place, begun = folder / "runs/growth", SETTLED // 4
    line = [*TINY, "callbacks.early_stopping=null", "hydra.run.dir=runs/growth", f"trainer.max_epochs={begun}"]
    assert_done(run("train", *line))
    running = start("train", "resume=runs/growth", f"trainer.max_epochs={EPOCHS}")
    memory = []
    while running.process.is_alive():
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        if epochs_of(place) >= SETTLED and "VmRSS:" in status:
            memory.append(int(status.partition("VmRSS:")[2].split()[0]) / 1000)
        time.sleep(0.2)
    assert_done(running.finish())
    growth = max(memory) - memory[0]
    print(f"\n{EPOCHS} epochs: {memory[0]:.0f} MB after {SETTLED}, {growth:.0f} MB more at most")
    assert epochs_of(place) == EPOCHS
    assert f"max_epochs: {EPOCHS}" in (place / ".hydra/config.yaml").read_text()
    assert growth < GROWTH


def test_ten_times_the_photographs_need_the_same_memory(start: Start, checkpoint: Path, folder: Path):
    peaks = list[float]()
    for number in (200, 2000):
        place = folder / f"photographs-{number}"
        place.mkdir()
        for index in range(number):
            (place / f"{index}.png").hardlink_to(held_out(folder)[index % 10].path)
        running = start("caption", f"checkpoint={checkpoint}", place.name, f"output=out-{number}", *FAST)
        peak = 0.0
        while running.process.is_alive():
            status = Path(f"/proc/{running.process.pid}/status").read_text()
            peak = max(peak, int((status.partition("VmHWM:")[2].split() or [0])[0]) / 1000)
            time.sleep(0.05)
        assert_done(running.finish())
        assert (folder / f"out-{number}/captions.jsonl").read_text().count("\n") == number
        peaks.append(peak)
    print(f"\npeak with 200 photographs {peaks[0]:.0f} MB, with 2,000 {peaks[1]:.0f} MB")
    assert peaks[1] < peaks[0] + GROWTH
