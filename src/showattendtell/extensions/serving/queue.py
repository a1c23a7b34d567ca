"""The places for requests, which clients share fairly, and the threads that work on them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from showattendtell.extensions.serving.schemas import RequestError

Result = TypeVar("Result")


@dataclass(eq=False)
class Place:
    """A place of a request. Cancelling its task ends the request with status 503 and drops work that has not begun."""

    client: str
    task: asyncio.Task[Any]
    arriving: bool = True  # whether the body has not yet arrived


class RequestQueue:
    """A limited number of places for requests, and a thread that works on one of them at a time.

    Large photographs have a thread of their own, so that others do not wait while they are decoded.

    Args:
        capacity: number of places.
        seconds: time for a request to arrive, and again for its answer.
    """

    def __init__(self, capacity: int, seconds: float):
        self.capacity, self._seconds = capacity, seconds
        self._places: list[Place] = []
        self._turns: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = WeakValueDictionary()
        self._threads = {False: ThreadPoolExecutor(1, "models"), True: ThreadPoolExecutor(1, "large")}

    @property
    def taken(self) -> int:
        """Number of places that are taken."""
        return len(self._places)

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[Place]:
        """Occupy a place for the whole of a request, so that its received data count.

        Raises `RequestError` if there is none, or if it is taken away.
        """
        self._make_room(client)
        place = Place(client, cast(asyncio.Task[Any], asyncio.current_task()))
        self._places.append(place)
        try:
            yield place
        except asyncio.CancelledError:
            reason = "the place of this request went to another client, or the server is shutting down"
            raise RequestError(503, f"{reason}; try again") from None
        finally:
            self._places.remove(place)

    def _make_room(self, client: str) -> None:
        """End the request of another client if all places are taken.

        It is one of the client with the most places if that has more than this one would have; otherwise one that has
        not arrived yet, of a client with as many.
        """
        if len(self._places) < self.capacity:
            return
        counts = Counter(place.client for place in self._places)
        heaviest, most = counts.most_common(1)[0]
        if most > counts[client] + 1:
            candidates = [place for place in self._places if place.client == heaviest]
        else:
            candidates = [place for place in self._places if place.arriving and counts[place.client] > counts[client]]
        if not candidates:
            raise RequestError(503, f"all {self.capacity} places are taken; try again in a moment")
        next((place for place in candidates if place.arriving), candidates[-1]).task.cancel()

    async def work(self, client: str, work: Callable[[], Result], large: bool = False) -> Result:
        """Return the result of the work. Clients take turns, however many requests one of them has.

        Raises `RequestError` if it takes too long.
        """
        turn = self._turns.setdefault((client, large), asyncio.Lock())
        try:
            async with asyncio.timeout(self._seconds), turn:
                return await asyncio.wrap_future(self._threads[large].submit(work))
        except TimeoutError:
            raise RequestError(503, f"the answer took longer than {self._seconds:g} seconds; try again") from None
