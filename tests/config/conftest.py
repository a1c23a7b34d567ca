"""A small conf/ with nested groups, and the package of a user's own that it names."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from showattendtell.config.signatures import SOURCES, read_signature

PARTS = '''
    from typing import Literal

    class Soft:
        """A glance.

        gate: what closes it.
        """
        def __init__(self, region_dim, score, gate: bool = True): self.score = score

    class Hard:
        def __init__(self, region_dim, score, samples: int = 1): ...

    class Mean:
        def __init__(self, region_dim): ...

    class Score:
        """A comparison.

        width: how wide it is.
        """
        def __init__(self, region_dim, width: int | Literal["state"] = "state"):
            self.region_dim, self.width = region_dim, width
'''

FILES = {
    "train.yaml": """
        defaults: [_self_, attention: soft, experiment: null]
        seed: 1
        hydra: {help: {header: a small one}}
    """,
    "attention/soft.yaml": "{defaults: [score: additive], _target_: parts.Soft}",
    "attention/hard.yaml": "{defaults: [score: additive], _target_: parts.Hard}",
    "attention/none.yaml": "_target_: parts.Mean",
    "attention/score/additive.yaml": "{_target_: parts.Score, _partial_: true}",
    "attention/score/cosine.yaml": "{_target_: parts.Score, _partial_: true, width: 8}",
    "experiment/plain.yaml": "# @package _global_\ndefaults:\n  - /experiment/shared/${attention}@_global_",
    "experiment/shared/soft.yaml": "# @package _global_\nseed: 2",
    "experiment/attentions/hard.yaml": "# @package _global_\ndefaults: [override /attention: hard]",
    "experiment/attentions/none.yaml": "# @package _global_\ndefaults: [override /attention: none]",
}


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The importable module `parts`, which is no part of showattendtell."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "parts.py").write_text(dedent(PARTS))
    monkeypatch.syspath_prepend(folder)
    yield "parts"
    sys.modules.pop("parts", None)
    read_signature.cache_clear()
    SOURCES.members.clear()


@pytest.fixture
def small_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: str) -> Path:
    """A folder that stands in the place of conf/."""
    folder = tmp_path / "conf"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    monkeypatch.setattr("showattendtell.config.folders.config_folder", lambda: str(folder))
    return folder
