"""Run work in a child process, so that the parent survives if it is killed."""

import atexit
import ctypes
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Self

from showattendtell.config.validation import sentence
from showattendtell.errors import UserError
from showattendtell.runtime.launched import stop_signals


def in_own_process(work: Callable[[], Any], seconds: float | None = None) -> Any:
    """Return the result of `work` in a fork of this process, which gets SIGTERM if this process is killed.

    Args:
        seconds: after this time the fork is killed.

    Raises:
        UserError: with the message of an exception in `work`, or if the fork is killed or otherwise stopped.
        TimeoutError: of `multiprocessing`, after `seconds`.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            process.kill()
            raise multiprocessing.TimeoutError(f"it took more than {seconds} seconds")
        returned, error = receiver.recv()
    except EOFError:
        returned, error = None, ""
    except KeyboardInterrupt:  # which the other process receives too
        returned, error = None, "it was interrupted"
    process.join()
    if error is None:
        return returned
    status = process.exitcode or 0
    if not error and status == -signal.SIGKILL:
        error = "the process was killed, probably out of memory; run fewer jobs in parallel"
    elif not error and status < 0:
        error = f"its process ended by {signal.Signals(-status).name}"
    raise UserError(error or f"it ended with status {status}")


def _answer(work: Callable[[], Any], sender: Connection) -> None:
    """Run `work` in the child and send its result, without the exit handlers that the parent registered."""
    atexit._clear()
    multiprocessing.set_start_method(None, force=True)  # joblib sets one for its own processes
    end_with_parent()
    try:
        sender.send((work(), None))
    except Exception as error:
        sender.send((None, sentence(error)))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        atexit._run_exitfuncs()


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
