"""The served models by name, their captions with the options of a request, and the queue for their thread."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from PIL import Image

from showattendtell.data.images import decode_image
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, did_you_mean
from showattendtell.inference.pipeline import CaptioningPipeline
from showattendtell.models.interfaces import Attention
from showattendtell.serving.schemas import RETRY, AttentionMode, CaptionRequest, RequestError, Upload, clean
from showattendtell.visualization.pages import ImageCaptions

VARIANTS = 8
"""Number of beam sizes and languages for which the pipeline of a model is kept."""

Result = TypeVar("Result")


class RegisteredModel:
    """A checkpoint or an ensemble under the name that requests use."""

    def __init__(self, name: str, captioner: CaptioningPipeline):
        self.name, self._captioner = name, captioner
        self._pipeline = lru_cache(VARIANTS)(self._with_options)

    @property
    def hard(self) -> list[Attention]:
        """The modules of hard attention, whose inference mode a request can choose."""
        attentions = (model.module.captioner.attention for model in self._captioner.models)
        return [attention for attention in attentions if attention.samples]

    @property
    def languages(self) -> list[str]:
        """The languages that a request can choose from; that of the server's setting comes first."""
        module = self._captioner.models[0].module
        first = [] if module.language is None else [module.language]
        return [*dict.fromkeys([*first, *module.vocabulary.languages])]

    @property
    def decoding(self) -> Decoding:
        return self._captioner.models[0].module.decoding

    def describe(self, photographs: list[Image.Image], options: CaptionRequest) -> list[ImageCaptions]:
        """Return the captions of each photograph; called by one thread at a time."""
        pipeline = self._pipeline(options.beam_size, options.language)
        pipeline.seed = self._captioner.seed if options.seed is None else options.seed
        with self._attention_mode(options.attention):
            return pipeline(photographs)

    def _with_options(self, beam_size: int | None, language: str | None) -> CaptioningPipeline:
        """Return a pipeline of the same models with another beam size and language; their weights are shared."""
        decoding = self.decoding
        if language:
            if language not in self.languages:
                hint = did_you_mean(clean(language), self.languages) if self.languages else "; leave language out"
                raise RequestError(422, f"{self.name} does not write the language '{clean(language)}'{hint}")
            decoding = dataclasses.replace(decoding, language=language)
        if beam_size:
            if not isinstance(decoding, BeamSearch):
                raise RequestError(422, "beam_size: this server does not decode by plain beam search; leave it out")
            try:
                decoding = dataclasses.replace(decoding, beam_size=beam_size)
            except ValueError as error:
                raise RequestError(422, f"beam_size: {error}") from None
        models = [
            model._replace(
                module=ImageCaptioner(model.module.encoder, model.module.captioner, model.module.vocabulary, decoding)
            )
            for model in self._captioner.models
        ]
        return CaptioningPipeline(self.name, models, self._captioner.seed)

    @contextmanager
    def _attention_mode(self, mode: AttentionMode | None) -> Iterator[None]:
        previous_modes = [attention.inference_mode for attention in self.hard]
        for attention in self.hard:
            attention.inference_mode = mode or attention.inference_mode
        try:
            yield
        finally:
            for attention, previous_mode in zip(self.hard, previous_modes, strict=True):
                attention.inference_mode = previous_mode


class ModelRegistry:
    """The served models by name; the first one is the default.

    Args:
        names: different names of the models; by default the last folders of their checkpoints.
    """

    def __init__(self, captioners: Sequence[CaptioningPipeline], names: Sequence[str] | None = None):
        for captioner in captioners:
            captioner.check_reads_pixels()
        names = names or short_names([captioner.name for captioner in captioners])
        self.by_name = {name: RegisteredModel(name, one) for name, one in zip(names, captioners, strict=True)}
        self.names = list(self.by_name)

    @property
    def beam_size(self) -> int | None:
        """The default beam size; None if the models do not use beam search."""
        decoding = self.by_name[self.names[0]].decoding
        return decoding.beam_size if isinstance(decoding, BeamSearch) else None

    def describe(self, photographs: Sequence[Upload], options: CaptionRequest) -> dict[str, list[ImageCaptions]]:
        """Return the captions of each photograph by the name of the requested model.

        Raises `RequestError` for a damaged photograph.
        """
        models = []
        for name in dict.fromkeys(options.model or self.names[:1]):
            if name not in self.by_name:
                raise RequestError(422, f"there is no model '{clean(name)}'{did_you_mean(clean(name), self.names)}")
            models.append(self.by_name[name])
        try:
            images = [decode_image(photograph.content, photograph.name) for photograph in photographs]
        except UserError as error:
            raise RequestError(422, str(error)) from None
        return {model.name: model.describe(images, options) for model in models}


def short_names(checkpoints: Sequence[str]) -> list[str]:
    """Return FOLDER/FILE of each checkpoint without the path to it; a repeated name becomes `FOLDER/FILE 2`."""
    counts: Counter[str] = Counter()
    names = []
    for checkpoint in checkpoints:
        name = " + ".join(str(Path(*Path(path).parts[-2:])) for path in checkpoint.split(" + "))
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} {counts[name]}")
    return names


class RequestQueue:
    """One thread that runs the models, so that only one photograph is decoded at a time, and a limited number of
    requests that wait for it.

    Args:
        capacity: maximum number of requests in progress.
        seconds: maximum time that a request waits for its answer.
    """

    def __init__(self, capacity: int, seconds: float):
        self._capacity, self._seconds = capacity, seconds
        self._capacity_per_client = capacity - capacity // 4
        self._held: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._thread = ThreadPoolExecutor(1, "models")

    def begin(self, work: Callable[[], Result]) -> Future[Result]:
        """Run work that belongs to no request in that thread, with the caller's context variables."""
        return self._thread.submit(copy_context().run, work)

    @contextmanager
    def slot(self, client: str) -> Iterator[None]:
        """Occupy a place for the whole of a request, so that its received data count.

        Raises `RequestError` if all places are taken, or three quarters of them by this client.
        """
        if self._held.total() >= self._capacity:
            raise RequestError(503, f"all {self._capacity} places are taken; try again in a moment", RETRY)
        if self._held[client] >= self._capacity_per_client:
            raise RequestError(
                503, f"this client has {self._capacity_per_client} requests under way; try again in a moment", RETRY
            )
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
            raise RequestError(503, "the server is shutting down; try again when it has restarted", RETRY) from None
        except TimeoutError:
            raise RequestError(
                503, f"the answer took longer than {self._seconds:g} seconds; try again", RETRY
            ) from None
        finally:
            watch.cancel()

    async def _take_turn(self, client: str, work: Callable[[], Result]) -> Result:
        """Wait in the thread's queue, which holds one task of each client at a time."""
        turn = self._turns.setdefault(client, asyncio.Lock())
        async with turn:
            return await asyncio.wrap_future(self._thread.submit(work))
