"""Commands of this package as processes of their own."""

import signal
import subprocess
import sys
from types import FrameType
from typing import Self

from showattendtell.config.own_process import end_with_parent

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Subcommands:
    """Runs commands in turn, as a context, in which signals go on to the present one: it may save what it has. Between
    them a signal ends this process.

    came  the last signal that came, if any did
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False
        self.came: int | None = None

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._hand_on) for number in PASSED_ON}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self.came = number
        if self._process:
            self._process.send_signal(number)
        elif not self._starting:
            sys.exit(128 + number)

    def status_of(self, command: str, *arguments: str) -> int:
        """Run it: the status with which it ended, or 128 + the signal that ended it. It is told to stop where this
        process is killed."""
        line = [sys.executable, "-m", f"showattendtell.{command}", *arguments]
        self._starting = True
        self._process = subprocess.Popen(line, preexec_fn=end_with_parent)
        self._starting = False
        if self.came:
            self._process.send_signal(self.came)
        status = self._process.wait()
        self._process = None
        return status if status >= 0 else 128 - status
