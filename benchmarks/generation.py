"""Captions written for stored grids: a batch of images at a time, one at a time, and as tutorials search."""

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import describe_machine
from benchmarks.textbook import textbook_beam
from showattendtell.decode.search import BeamSearch
from showattendtell.decode.speaker import Speaker
from showattendtell.model.attention import SoftAttention
from showattendtell.model.captioner import Captioner
from showattendtell.model.decoder import LSTMDecoder
from showattendtell.text.vocabulary import EOS, SPECIAL, Vocabulary

IMAGES, BATCH = 200, 50
ALONE = 8
"""The images that are searched one at a time in each round."""
BEAM_SIZE, LENGTH = 5, 12
REGIONS, REGION_DIM, VOCABULARY_SIZE, WIDTH = 196, 512, 10_000, 512
REPEATS = 3

Write = Callable[[Tensor], list[list[int]]]


def make_captioner() -> Captioner:
    """A model with random weights; none of its captions ends, so all have 12 words."""
    torch.manual_seed(0)
    attention = SoftAttention(REGION_DIM, WIDTH)
    captioner = Captioner(attention, LSTMDecoder(VOCABULARY_SIZE, REGION_DIM, WIDTH, WIDTH)).eval()
    with torch.no_grad():
        captioner.decoder.word_scores.bias[EOS] = -1e4
    return captioner


def main() -> None:
    captioner = make_captioner()
    regions = torch.rand(IMAGES, REGIONS, REGION_DIM)
    vocabulary = Vocabulary([*SPECIAL, *(f"word{number}" for number in range(VOCABULARY_SIZE - len(SPECIAL)))])
    decoding, speaker = BeamSearch(beam_size=BEAM_SIZE, max_length=LENGTH), Speaker([captioner])

    def write(seen: Tensor) -> list[list[int]]:
        return [caption.tokens for [caption] in decoding.write(speaker, [seen], vocabulary)]

    def one_at_a_time(seen: Tensor) -> list[list[int]]:
        return [caption for image in seen.split(1) for caption in write(image)]

    def as_tutorials(seen: Tensor) -> list[list[int]]:
        return [textbook_beam(captioner, image, BEAM_SIZE, LENGTH) for image in seen.split(1)]

    ways: dict[str, tuple[Write, int]] = {
        "textbook, one image at a time": (as_tutorials, ALONE),
        "ours, one image at a time": (one_at_a_time, ALONE),
        f"ours, {BATCH} images at a time": (write, BATCH),
        f"ours, {IMAGES} images at a time": (write, IMAGES),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    captions: dict[str, list[list[int]]] = {}
    for _ in range(REPEATS + 1):
        for name, (way, number) in ways.items():
            started = time.perf_counter()
            captions[name] = way(regions[:number])
            seconds[name].append((time.perf_counter() - started) / number)
    print_table({name: 1 / statistics.median(times[1:]) for name, times in seconds.items()}, captions)


def print_table(rates: dict[str, float], captions: dict[str, list[list[int]]]) -> None:
    table = Table(
        "", title=f"writing captions, beam {BEAM_SIZE}, cached grids, fp32, {LENGTH} words", title_justify="left"
    )
    for column in ("images a second", "times the textbook", "same captions"):
        table.add_column(column, justify="right")
    textbook, *_ = rates
    for name, rate in rates.items():
        pairs = list(zip(captions[textbook], captions[name], strict=False))
        same = sum(first == second for first, second in pairs)
        table.add_row(name, f"{rate:.1f}", f"{rate / rates[textbook]:.1f}", f"{same} of {len(pairs)}")
    table.caption = f"{describe_machine()}; median of {REPEATS}"
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
