"""A training with interpreted kernels has the figures of one without them."""

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or torch.cuda.is_available(), reason="needs Triton, and no GPU"
    ),
]

SMALL = ["dataset.train=4", "dataset.val=2", "dataset.test=2", "encoder.stride=32", "trainer.max_epochs=1"]
SMALL += ["data.batch_size=10", "attention.score.width=8", "decoder.embedding_dim=8", "decoder.hidden_dim=8"]
SMALL += ["decoder.dropout=0", "decoding.beam_size=2", "decoding.max_length=4", "hydra.run.dir=run", "cache=../cache"]


def train(folder: Path, **environment: str) -> list[dict[str, str]]:
    command = [sys.executable, "-m", "showattendtell.train", *SMALL]
    folder.mkdir()
    subprocess.run(command, cwd=folder, env={**os.environ, **environment}, check=True, capture_output=True)
    with (folder / "run/metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_training_has_the_same_figures(tmp_path: Path):
    expected = train(tmp_path / "torch")
    found = train(tmp_path / "triton", TRITON_INTERPRET="1")
    assert found != expected  # which other kernels round differently
    assert len(found) == len(expected)
    for row, right in zip(found, expected, strict=True):
        assert {name for name, value in row.items() if value} == {name for name, value in right.items() if value}
        values = {name: float(value) for name, value in row.items() if value}
        assert values == pytest.approx({name: float(right[name]) for name in values}, rel=1e-3, abs=1e-5)
