"""The line of requests before the one thread that models work in."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from showattendtell.serving.refusal import Refusal

Result = TypeVar("Result")

RETRY = {"Retry-After": "2"}


class Line:
    """One thread for all that models do, so that no more than one photograph is decoded at a time, and a bounded number
    of requests that wait for it.

    Args:
        places: how many requests may be on their way.
        seconds: how long one of them waits for its answer.
    """

    def __init__(self, places: int, seconds: float):
        self._free, self._places, self._seconds = places, places, seconds
        self._thread = ThreadPoolExecutor(1, "models")

    def begin(self, work: Callable[[], Result]) -> Future[Result]:
        """Work that is not a request's, in that thread, with what holds where it is asked for."""
        return self._thread.submit(copy_context().run, work)

    @contextmanager
    def place(self) -> Iterator[None]:
        """For the whole of a request, so that what has been sent of it counts; a `Refusal` where all are taken."""
        if not self._free:
            raise Refusal(503, f"all {self._places} places are taken; come again in a moment", RETRY)
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1

    async def work(self, work: Callable[[], Result]) -> Result:
        """What the work gives; what has not begun when the time is over is not begun."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._thread.submit(work)), self._seconds)
        except asyncio.CancelledError:
            raise Refusal(503, "the server ends; come again when it is started anew", RETRY) from None
        except TimeoutError:
            raise Refusal(503, f"the answer took longer than {self._seconds:g} seconds; come again", RETRY) from None
