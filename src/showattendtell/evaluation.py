"""Captions and attention of a trained model over the images of a split."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from showattendtell.captioning import Choir, ImageCaptioner
from showattendtell.data.images import image_size
from showattendtell.metrics.gaze import Gaze, Look, compare, score_gaze
from showattendtell.metrics.relations import RELATIONS, Relations, score_relations
from showattendtell.processes import gather, own_part, own_share, rank
from showattendtell.records import Example, Trace
from showattendtell.splits import CaptionBatches, ImageBatches, ImageSource
from showattendtell.watch import Figure, pool, pool_processes, watch_maps

IMAGES_AT_A_TIME = 50
CAPTIONS_AT_A_TIME = 64


class Writer(NamedTuple):
    """A model and the images of a split as it takes them."""

    module: ImageCaptioner
    images: ImageSource


def write_captions(
    writers: Sequence[Writer], examples: Sequence[Example], seed: int, mirrors: Sequence[Writer] = ()
) -> dict[str, list[list[str]]]:
    """Captions for every image by its name, in words, best first, written free-running; several models write as one.

    Where several processes run, each writes for its own images, and all get all the captions in the examples' order.
    What is drawn for an image depends on the seed and on its batch, and not on how many processes there are.

    Args:
        mirrors: the same models before the mirror images, where these are read as well.
    """
    sources = [ImageBatches(examples, writer.images, IMAGES_AT_A_TIME) for writer in (*writers, *mirrors)]
    choir, written = Choir([writer.module for writer in writers]), {}
    device, vocabulary = writers[0].module.device, writers[0].module.vocabulary
    for index in track(
        own_share(len(sources[0])), "captioning", console=Console(stderr=True, quiet=rank() > 0), transient=True
    ):
        torch.manual_seed(seed + index)
        scenes = [source[index] for source in sources]
        captioned = choir.write([scene.images.to(device) for scene in scenes])
        for name, captions in zip(scenes[0].names, captioned, strict=True):
            written[name] = [vocabulary.decode(caption.tokens) for caption in captions]
    together = gather(written)
    return {example.image: together[example.image] for example in examples}


def people_said(examples: Sequence[Example]) -> dict[str, list[str]]:
    """What people said of each image, as they wrote it where the data set has kept that."""
    return {
        example.image: [caption.written or " ".join(caption.words) for caption in example.captions]
        for example in examples
    }


def measure_gaze(module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]) -> Gaze | None:
    """How well attention finds what the nouns of people's captions name; None for a data set without boxes."""
    if not any(caption.phrases for example in examples for caption in example.captions):
        return None
    own = [compare(look) for look in look_at_nouns(module, images, examples)]
    return score_gaze([glance for glances in gather({str(rank()): own}).values() for glance in glances])


def look_at_nouns(module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]) -> Iterator[Look]:
    """Where the model looks at each noun that has a box, given the words that people wrote before it; where several
    processes run, at this one's."""
    captions = CaptionBatches(examples, module.vocabulary, images)
    phrases = [caption.phrases for example in examples for caption in example.captions]
    told = own_part([number for number, nouns in enumerate(phrases) if nouns])
    for number, _, weights in _read(module, captions, told, "looking"):
        alpha = weights.cpu().numpy()
        width, height = image_size(examples[captions.owners[number]].path)
        seen = module.encoder.preprocessing.crop_box(width, height).scaled(1 / width, 1 / height)
        for phrase in phrases[number]:
            yield Look(alpha[phrase.noun].reshape(module.encoder.grid), seen, phrase.boxes, phrase.kind)


def measure_maps(module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]) -> dict[str, Figure]:
    """What `watch_maps` tells of the model's maps over all words of people's captions."""
    captions = CaptionBatches(examples, module.vocabulary, images)
    parts: defaultdict[str, list[Figure]] = defaultdict(list)
    for together, trace in _trace(module, captions, own_part(list(range(len(captions)))), "watching"):
        for name, figure in watch_maps(trace, captions.tokens.pad(together).to(module.device)).items():
            parts[name].append(figure)
    return pool_processes({name: pool(figures) for name, figures in parts.items()})


def measure_relations(module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]) -> Relations:
    """How well the model chooses between relations (left, above, ...) where people's captions have one."""
    return score_relations(_choose_relations(module, images, examples))


def _choose_relations(
    module: ImageCaptioner, images: ImageSource, examples: Sequence[Example]
) -> Iterator[tuple[str, str]]:
    """Each relation word of people's captions, and the one that the model finds likeliest in its place."""
    captions = CaptionBatches(examples, module.vocabulary, images)
    words = module.vocabulary.words
    known = [token for token, word in enumerate(words) if word in RELATIONS]
    told = [number for number, tokens in enumerate(captions.tokens) if set(tokens) & set(known)]
    for number, logits, _ in _read(module, captions, told, "relating"):
        chosen = logits[:, known].argmax(dim=1).tolist()
        for token, choice in zip(captions.tokens[number], chosen, strict=False):
            if token in known:
                yield words[token], words[known[choice]]


def _read(
    module: ImageCaptioner, captions: CaptionBatches, numbers: Sequence[int], doing: str
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The logits (T, V) and alpha (T, L) of each of the captions, which the model reads word by word."""
    for together, traces in _trace(module, captions, numbers, doing):
        yield from zip(together, traces.at_steps(traces.logits), traces.weights, strict=True)


@torch.no_grad()
def _trace(
    module: ImageCaptioner, captions: CaptionBatches, numbers: Sequence[int], doing: str
) -> Iterator[tuple[list[int], Trace]]:
    """The numbers of some of the captions, and what the model made of them, until all are read."""
    for start in _watched(range(0, len(numbers), CAPTIONS_AT_A_TIME), doing):
        together = list(numbers[start : start + CAPTIONS_AT_A_TIME])
        images, owners, tokens, _ = captions[together]
        yield together, module.trace(*(part.to(module.device) for part in (images, owners, tokens)))


def _watched(work: range, doing: str) -> Iterable[int]:
    """With a progress bar on a terminal, by the first process."""
    console = Console(stderr=True)
    return track(work, doing, console=console, transient=True, disable=not console.is_terminal or rank() > 0)
