"""States of the random number generators of a process as plain data."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """Return the states of Python, NumPy, torch and its GPU, in types that weights-only unpickling accepts."""
    numpy = np.random.get_state(legacy=False)
    key = numpy["state"]["key"].tolist()
    return {
        "python": random.getstate(),
        "numpy": {**numpy, "state": {**numpy["state"], "key": key}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Restore the states that `random_states` returned; that of the GPU only if both processes have one."""
    numpy = states["numpy"]
    key = np.array(numpy["state"]["key"], dtype=np.uint32)
    random.setstate(states["python"])
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Leave the random states as they were before the `with` block."""
    states = random_states()
    yield
    set_random_states(states)
