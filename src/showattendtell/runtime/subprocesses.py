"""Run commands of this package one after the other."""

import ctypes
import signal
import subprocess
import sys
from types import FrameType
from typing import Self

from showattendtell.runtime.launched import stop_signals


def end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent ends, even if the parent is killed (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Subcommands:
    """Context that runs commands one after the other and forwards signals to the current one, so that it can save its
    state. Between commands a signal exits this process. `received_signal` is the last one, or None."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False
        self.received_signal: int | None = None

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._hand_on) for number in stop_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self.received_signal = number
        if self._process:
            self._process.send_signal(number)
        elif not self._starting:
            sys.exit(128 + number)

    def status_of(self, command: str, *arguments: str) -> int:
        """Run a command; return its exit status, or 128 + the signal that ended it."""
        line = [sys.executable, "-m", f"showattendtell.{command}", *arguments]
        self._starting = True
        self._process = subprocess.Popen(line, preexec_fn=end_with_parent)
        self._starting = False
        if self.received_signal:
            self._process.send_signal(self.received_signal)
        status = self._process.wait()
        self._process = None
        return status if status >= 0 else 128 - status
