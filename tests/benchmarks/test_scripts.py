"""Every benchmark script runs at a tiny size and returns finite figures."""

import importlib
import logging
import math
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import SCRIPTS
from benchmarks.harness import memory, timing
from benchmarks.harness.figures import figure_table
from benchmarks.harness.results import RESULTS
from benchmarks.harness.script import CannotRunError
from benchmarks.workload import Workload
from rich.console import Console

from benchmarks import __main__ as everything
from benchmarks import extraction, generation, gpu_training, growth, training_step
from showattendtell.images.reading import Preprocessing

TINY = Workload(2, 2, regions=4, region_dim=8, vocabulary=40, embedding=8, hidden=8, attention=8)
NETWORK = extraction.Network("tf_efficientnet_lite0", 16, "random", 2, 0, 1)
OPTIONS = Namespace(threads=1, device="cpu", photographs="", captions="")

SIZES: dict[str, dict[str, Any]] = {
    "training_step": {
        "MIXED": TINY,
        "CASES": [training_step.CASES[0]._replace(workload=TINY)],
        "TWO_THREADS": training_step.TWO_THREADS._replace(workload=TINY),
    },
    "growth": {
        "AXES": [axis._replace(sizes=(2, 4), workload=lambda size: TINY._replace(images=size)) for axis in growth.AXES]
    },
    "output_layer": {"WORKLOADS": [TINY._replace(embedding=16)], "BEAMS": 2},
    "generation": {"WORKLOAD": TINY, "IMAGES": dict.fromkeys(generation.IMAGES, 2), "CASES": generation.CASES[2:]},
    "extraction": {"NETWORKS": [NETWORK], "IMAGES": 2},
    "decoding": {
        "IMAGES": 2,
        "WIDTH": 50,
        "HEIGHT": 40,
        "PREPROCESSING": Preprocessing(32, 24, (0.5,) * 3, (0.5,) * 3),
    },
    "features": {"SIZES": (40, 80), "REGION_DIM": 8, "BATCH_SIZE": 4, "BATCHES": 2, "CACHED": 16, "REPEATS": 1},
    "loader": {"IMAGES": 40, "ROWS": 2, "COLUMNS": 2, "REGION_DIM": 8, "VOCABULARY_SIZE": 40, "WIDTH": 8, "STEPS": 2},
    "sampler": {"SIZES": (200, 400)},
    "recompute": {"NETWORKS": ["tf_efficientnet_lite0"], "SIDE": 64},
    "gpu_step": {"WORKLOAD": TINY, "STEPS": 2},
    "gpu_training": {
        "DATA_SETS": {name: TINY._replace(images=20) for name in gpu_training.DATA_SETS},
        "BATCH_SIZE": 2,
        "BATCHES": 2,
        "ENCODED": 2,
        "NETWORKS": [NETWORK],
        "BEAM_WORKLOAD": TINY,
    },
    "gpu_finetuning": {
        **{"SIDE": 32, "IMAGES": 4, "DRAWN": 2, "CAPTIONS_PER_IMAGE": 2, "BATCH_SIZE": 3, "VOCABULARY_SIZE": 40},
        **{"WIDTH": 8, "WORDS": 3, "WARM_UP": 1, "PORT_BATCHES": 1, "READ_BATCHES": 3, "ROUND_SECONDS": 0},
    },
}


COSTLY = {"training_step", "generation", "growth", "extraction", "features", "recompute"}
COSTLY |= {"gpu_training", "gpu_finetuning"}
"""They compile or encode. test_training_step.py and test_generation.py have what two of them time."""


def test_every_script_is_among_all_and_has_tiny_sizes_and_all_take_less_than_ten_minutes():
    files = Path(everything.__file__).parent.glob("*.py")
    scripts = {file.stem for file in files if "main(measure" in file.read_text()}
    assert scripts - {"published", "calls"} == {*SCRIPTS}  # it needs a clone of the port
    assert {*SIZES, "startup", "busy"} == {*SCRIPTS}  # these time new processes
    assert sum(everything.BUDGETS.values()) < 600


@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.slow if name in COSTLY else []) for name in SIZES]
)
def test_a_script_returns_finite_figures_with_units(
    script: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    module, before = importlib.import_module(f"benchmarks.{script}"), {*RESULTS.glob("*")}
    for name, value in SIZES[script].items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(timing, "MAX_ROUNDS", 1)
    monkeypatch.setattr(extraction, "find_spec", lambda package: None)  # an export to ONNX takes seconds
    monkeypatch.setattr(training_step, "MIN_BF16_GAIN", 0)
    monkeypatch.setattr(memory, "ProcessPoolExecutor", lambda workers, context: ThreadPoolExecutor(workers))
    megabytes = count()
    monkeypatch.setattr(memory, "memory", lambda kind: next(megabytes))
    try:
        with caplog.at_level(logging.ERROR, "pytorch_lightning"):
            tables, figures, _ = module.measure(OPTIONS)
    except CannotRunError as reason:
        pytest.skip(str(reason))
    assert figures
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        assert figure.unit
        assert math.isfinite(figure.value), figure
        assert figure.value > 0 or figure.unit in ("%", "levels", "MB"), figure
    screen = Console(file=StringIO(), width=200)
    for table in tables or [figure_table(figures)]:
        screen.print(table)
    assert {*RESULTS.glob("*")} == before
