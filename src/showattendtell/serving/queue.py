"""Queue of requests for the single thread that runs the models."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar
from weakref import WeakValueDictionary

from showattendtell.serving.limits import RequestError

Result = TypeVar("Result")

RETRY = {"Retry-After": "2"}


class RequestQueue:
    """One thread that runs the models, so that only one photograph is decoded at a time, and a limited number of
    requests that wait for it.

    Args:
        places: maximum number of requests in progress.
        seconds: maximum time that a request waits for its answer.
    """

    def __init__(self, places: int, seconds: float):
        self._places, self._seconds = places, seconds
        self._share = places - places // 4
        self._held: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._thread = ThreadPoolExecutor(1, "models")

    def begin(self, work: Callable[[], Result]) -> Future[Result]:
        """Run work that belongs to no request in that thread, with the caller's context variables."""
        return self._thread.submit(copy_context().run, work)

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """Occupy a place for the whole of a request, so that its received data count.

        Raises `RequestError` if all places are taken, or three quarters of them by this client.
        """
        if self._held.total() >= self._places:
            raise RequestError(503, f"all {self._places} places are taken; come again in a moment", RETRY)
        if self._held[client] >= self._share:
            raise RequestError(503, f"this client has {self._share} requests under way; come again in a moment", RETRY)
        self._held[client] += 1
        try:
            yield
        finally:
            self._held[client] -= 1
            self._held += Counter()  # drop clients without places

    async def work(self, client: str, work: Callable[[], Result], cancelled: Coroutine[None, None, None]) -> Result:
        """Return the result of the work.

        Args:
            client: clients take turns, however many requests one of them has.
            cancelled: returns when nobody waits for the result any more. Work that has not started by then, or within
                the time limit, is dropped.
        """
        done = asyncio.ensure_future(self._take_turn(client, work))
        watch = asyncio.ensure_future(cancelled)
        watch.add_done_callback(lambda watched: watched.cancelled() or done.cancel())
        try:
            return await asyncio.wait_for(done, self._seconds)
        except asyncio.CancelledError:
            raise RequestError(503, "the server ends; come again when it is started anew", RETRY) from None
        except TimeoutError:
            raise RequestError(
                503, f"the answer took longer than {self._seconds:g} seconds; come again", RETRY
            ) from None
        finally:
            watch.cancel()

    async def _take_turn(self, client: str, work: Callable[[], Result]) -> Result:
        """Wait in the thread's queue, which holds one task of each client at a time."""
        turn = self._turns.setdefault(client, asyncio.Lock())
        async with turn:
            return await asyncio.wrap_future(self._thread.submit(work))
