"""The functions before the first training step are those of a real training."""

from argparse import Namespace

import pytest

from benchmarks import calls


@pytest.mark.slow
def test_functions_are_counted_by_file():
    _, figures, notes = calls.measure(Namespace())
    values = {figure.name: figure.value for figure in figures}
    assert values[calls.FILES] == len(notes)
    assert "train.py: 3" in notes
