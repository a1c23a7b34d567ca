"""Threads by the cores of a container; what the user has set stays."""

import os
from pathlib import Path

import pytest

from showattendtell.runtime import process


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("25000 50000", 1), ("6400000 100000", 8), ("", 8)],
)
def test_cores_are_limited_by_the_quota_of_a_container(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(process, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert process.num_cores() == cores
    process.limit_threads()
    assert os.environ.get("OMP_NUM_THREADS") == (None if cores == 8 else str(cores))
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize(
    ("variable", "value", "policy"), [("GOMP_SPINCOUNT", "7", None), ("OMP_WAIT_POLICY", "ACTIVE", "ACTIVE")]
)
def test_what_the_user_has_set_stays(variable: str, value: str, policy: str | None, monkeypatch: pytest.MonkeyPatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(process, "num_cores", lambda: 1)
    process.limit_threads()
    assert (os.environ["OMP_NUM_THREADS"], os.environ.get("OMP_WAIT_POLICY")) == ("3", policy)
