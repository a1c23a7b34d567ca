"""Work in a process of its own, which may be killed without harm to the one that waits for it."""

import atexit
import ctypes
import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from showattendtell.config.faults import sentence
from showattendtell.errors import UserError

INTERRUPTED = 130
PR_SET_PDEATHSIG = 1


def in_own_process(work: Callable[[], Any]) -> Any:
    """What `work` returns in a fork of this process; all memory that it took is given back.

    Raises `UserError` with the sentence of what it raises there, and where it is killed or otherwise stopped. It is
    told to stop itself where this process is killed.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, sender))
    process.start()
    sender.close()
    try:
        returned, fault = receiver.recv()
    except EOFError:
        returned, fault = None, ""
    except KeyboardInterrupt:  # which the other process has got as well
        returned, fault = None, "it was interrupted"
    process.join()
    if fault is not None:
        raise UserError(fault or _end(process.exitcode or 0))
    return returned


def _answer(work: Callable[[], Any], receiver: Connection) -> None:
    """What the process does: none of what its parent has registered for its own end."""
    atexit._clear()
    multiprocessing.set_start_method(None, force=True)  # that of joblib is for its own processes
    end_with_parent()
    try:
        receiver.send((work(), None))
    except Exception as fault:
        receiver.send((None, sentence(fault)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        atexit._run_exitfuncs()


def end_with_parent() -> None:
    """Have this process told to stop where the one that started it ends, be it killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(status: int) -> str:
    """The sentence for a process that ended without an answer."""
    if status == -signal.SIGKILL:
        return "its process was killed, as for lack of memory; have fewer runs at once"
    return f"its process ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"
