"""Training steps on a machine with other work: busy processes that run plain Python next to the training.

Each training is a new Python process, with the environment of this one: `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` choose
how threads wait. A fair share of a machine with as many busy processes as cores is half of it.
"""

import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main

STEPS, SKIPPED = 25, 5
"""Training steps of a process, and those at its beginning that do not count."""

BUSY = "while True: pass"

TRAIN = """
import logging, statistics, sys, time
import showattendtell
import pytorch_lightning as lightning

steps, skipped = map(int, sys.argv[1:])
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

class Clock(lightning.Callback):
    started, seconds = 0.0, []
    def on_train_batch_start(self, *_): self.started = time.perf_counter()
    def on_train_batch_end(self, *_): self.seconds.append(time.perf_counter() - self.started)

trainer = lightning.Trainer(
    max_epochs=1, limit_train_batches=steps, limit_val_batches=0, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Clock()],
)
data = showattendtell.ShapesDataModule(num_train=400, num_val=10, num_test=10)
trainer.fit(showattendtell.CaptioningModule(hidden_dim=512), data)
print("median", statistics.median(Clock.seconds[skipped:]))
"""


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keep as many processes busy until the `with` block ends."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def median_step(cache: str, threads: int, num_busy: int) -> float:
    """Return the median seconds of a training step."""
    command = [sys.executable, "-c", TRAIN, str(STEPS), str(SKIPPED)]
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "SHOWATTENDTELL_CACHE": cache}
    with busy_processes(num_busy):
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("median ")]
    return float(line.split()[1])


def measure(options: Namespace) -> Results:
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as cache:
        idle, beside_all = median_step(cache, cores, 0), median_step(cache, cores, cores)
        beside_one, one_thread = median_step(cache, cores, 1), median_step(cache, 1, 1)
    figures = [
        Figure("training step, idle", 1000 * idle, "ms", "lower"),
        Figure("training step beside as many busy processes as cores / idle", beside_all / idle, "times", "lower", 2.4),
        Figure(
            "training step beside one busy process / on one thread",
            beside_one / one_thread,
            "times",
            "lower",
            1.3,
        ),
    ]
    return Results([], figures)


if __name__ == "__main__":
    main(measure)
