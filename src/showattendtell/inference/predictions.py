"""Captions and attention maps of trained models for the images of a split."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader

from showattendtell.datamodules.datasets import CaptionDataset, ImageDataset, ImageSource, default_workers
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.loading.models import LoadedModel
from showattendtell.metrics.attention import GroundedWord, attention_statistics, compare_maps, score_attention
from showattendtell.metrics.means import Means
from showattendtell.runtime.distributed import gather, rank, shard, shard_indices
from showattendtell.types import CaptionerOutput, Example

IMAGE_BATCH_SIZE = 50
CAPTION_BATCH_SIZE = 64

Item = TypeVar("Item")


def evenly_spaced(items: Sequence[Item], number: int | None) -> list[Item]:
    """Return `number` items at equal distances; all of them if there are fewer, or if `number` is None."""
    number = min(number or len(items), len(items))
    return [items[place * len(items) // number] for place in range(number)]


def _read(
    data: CaptionDataset | ImageDataset,
    requests: Sequence[Any],
    module: ImageCaptioner,
    doing: str,
    silent: bool = False,
) -> Iterable[Any]:
    """Yield the items of a data set in the order of the requests, read for the device of a model.

    Args:
        doing: title of the progress bar, which the first process shows on a terminal.
        silent: show none.
    """
    workers = default_workers(data.images, module.device)
    batches = DataLoader(
        data,
        batch_size=None,  # an item is a batch
        sampler=requests,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        pin_memory=workers > 0,
        generator=torch.Generator(),  # captions do not depend on the seed that it draws
    )
    console = Console(stderr=True)
    is_hidden = silent or not console.is_terminal or rank() > 0
    return track(batches, doing, len(requests), console=console, transient=True, disable=is_hidden)


@torch.no_grad()
def read_grids(
    module: ImageCaptioner, images: ImageSource, examples: Sequence[Example], doing: str
) -> Iterator[Tensor]:
    """Yield the grids (I, L, D) of examples in batches, with a progress bar."""
    batches = ImageDataset(examples, images, IMAGE_BATCH_SIZE)
    for batch in _read(batches, range(len(batches)), module, doing):
        yield module.grids(batch.images.to(module.device))


def generate_captions(
    models: Sequence[LoadedModel], images: Sequence[ImageSource], examples: Sequence[Example], seed: int
) -> dict[str, list[list[str]]]:
    """Caption images with a model, or with several as an ensemble.

    With several processes each one captions a part of the images. Random numbers depend on the seed and the batch, not
    on the number of processes.

    Args:
        images: the images as each model reads them.

    Returns:
        By image name, in the order of the examples, its captions in words, best first; the same in all processes.
    """
    sources = [ImageDataset(examples, source, IMAGE_BATCH_SIZE) for source in images]
    ensemble = ImageCaptionerEnsemble([model.module for model in models])
    first, written = models[0].module, dict[str, list[list[str]]]()
    indices = shard_indices(len(sources[0]))
    batches = [_read(source, indices, first, "captioning", silent=i > 0) for i, source in enumerate(sources)]
    for index, *scenes in zip(indices, *batches, strict=True):
        torch.manual_seed(seed + index)
        captioned = ensemble.generate([scene.images.to(first.device) for scene in scenes])
        for name, captions in zip(scenes[0].names, captioned, strict=True):
            written[name] = [first.vocabulary.decode(caption.tokens) for caption in captions]
    together = gather(written)
    return {example.image: together[example.image] for example in examples}


def reference_sentences(examples: Sequence[Example]) -> dict[str, list[str]]:
    """Return the reference captions of each image as sentences, before tokenization if the data set has them."""
    return {example.image: [caption.sentence for caption in example.captions] for example in examples}


def measure_attention(
    module: ImageCaptioner, images: ImageSource, examples: Sequence[Example], silent: bool = False
) -> dict[str, Any]:
    """Score the attention maps at the nouns of the reference captions against the boxes of the named objects.

    Args:
        silent: show no progress, because another progress bar is shown.

    Returns:
        The scores, see `score_attention`; none for examples without ground-truth boxes.
    """
    if not any(caption.phrases for example in examples for caption in example.captions):
        return {}
    hits = list(map(compare_maps, maps_at_nouns(module, images, examples, silent)))
    return score_attention(list(chain.from_iterable(gather({str(rank()): hits}).values())))


def maps_at_nouns(
    module: ImageCaptioner, images: ImageSource, examples: Sequence[Example], silent: bool = False
) -> Iterator[GroundedWord]:
    """Yield the attention map at each noun that has ground-truth boxes, given the words before it in the reference
    caption. With several processes each one yields a part."""
    captions = CaptionDataset(examples, module.vocabulary, images)
    phrases = [caption.phrases for example in examples for caption in example.captions]
    selected = shard([number for number, nouns in enumerate(phrases) if nouns])
    for together, outputs in outputs_by_batch(module, captions, selected, "attention at nouns", silent):
        maps = outputs.weights.unflatten(2, module.encoder.grid).cpu().numpy()  # (B, T, rows, columns)
        for number, own in zip(together, maps, strict=True):
            seen = module.encoder.preprocessing.frame(examples[captions.image_index[number]].path).seen
            for phrase in phrases[number]:
                yield GroundedWord(own[phrase.noun], seen, phrase.boxes, phrase.kind)


def measure_maps(module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]) -> dict[str, float]:
    """Return the `attention_statistics` of the maps at all words of the reference captions."""
    captions, means = CaptionDataset(examples, module.vocabulary, images), Means()
    numbers = shard(list(range(len(captions))))
    for together, outputs in outputs_by_batch(module, captions, numbers, "attention statistics"):
        means.update(attention_statistics(outputs, captions.tokens.pad(together).to(module.device)))
    return {name: float(mean) for name, mean in means.compute(empty=torch.zeros(())).items()}


@torch.no_grad()
def outputs_by_batch(
    module: ImageCaptioner, captions: CaptionDataset, numbers: Sequence[int], doing: str, silent: bool = False
) -> Iterator[tuple[list[int], CaptionerOutput]]:
    """Yield batches: the indices of captions, and the output of the model for them with teacher forcing."""
    starts = range(0, len(numbers), CAPTION_BATCH_SIZE)
    requests = [list(numbers[start : start + CAPTION_BATCH_SIZE]) for start in starts]
    for together, batch in zip(requests, _read(captions, requests, module, doing, silent), strict=True):
        images, image_index, tokens, *_ = batch
        yield together, module(*(part.to(module.device) for part in (images, image_index, tokens)))
