"""The metrics on 5,000 images with five references each, of captions that are made up, or read from a folder."""

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.frame.figures import Figure
from benchmarks.frame.script import CannotRunError, Measured, main
from showattendtell.metrics.modular import measure as measure_captions
from showattendtell.metrics.tokenizers import split_sentences

IMAGES, REFERENCES, VOCABULARY_SIZE = 5000, 5, 8000
RESAMPLES = 1000
METRICS = {"bleu": "bleu4", "rouge_l": "rouge_l", "cider": "cider", "meteor": "meteor"}
"""The key of each metric in the results; METEOR's seconds include the start of Java."""

Sentences = list[str]


class Timed(NamedTuple):
    """Seconds to see the captions, seconds to score resampled corpora, and the figure."""

    measuring: float
    resampling: float
    figure: float


def make_captions() -> tuple[Sentences, list[Sentences]]:
    """8 to 15 of 8,000 words, common ones more often (Zipf); half of a reference's words are in the caption, too."""
    draw = random.Random(0)
    words = [f"word{n}" for n in range(VOCABULARY_SIZE)]
    frequencies = [1 / rank for rank in range(1, VOCABULARY_SIZE + 1)]

    def write(said: Sequence[str]) -> str:
        kept = draw.sample(said, len(said) // 2)
        return " ".join(kept + draw.choices(words, frequencies, k=draw.randint(8, 15) - len(kept)))

    hypotheses = [write([]) for _ in range(IMAGES)]
    return hypotheses, [[write(hypothesis.split()) for hypothesis in hypotheses] for _ in range(REFERENCES)]


def read_captions(folder: Path) -> tuple[Sentences, list[Sentences]]:
    hypotheses, *references = (
        folder.joinpath(name).read_text(encoding="utf-8").splitlines()
        for name in ["hypotheses-a.txt", *(f"reference{n}" for n in range(REFERENCES))]
    )
    return hypotheses, references


def split(hypotheses: Sentences, references: list[Sentences]) -> tuple[list[list[str]], list[list[list[str]]]]:
    """In one run of the PTB tokenizer: the words of captions, and of each image's references."""
    words = split_sentences([*hypotheses, *(said for file in references for said in file)], "ptb")
    images = len(hypotheses)
    return words[:images], [words[image::images][1:] for image in range(images)]


def time_metric(name: str, hypotheses: list[list[str]], references: list[list[list[str]]], copies: np.ndarray) -> Timed:
    started = time.perf_counter()
    measured, missing = measure_captions(hypotheses, references, [name])
    if missing:
        raise CannotRunError(missing[name])
    seen = time.perf_counter()
    measured[name].scores(copies)
    resampled = time.perf_counter()
    [figure] = measured[name].scores(np.ones((1, len(hypotheses))))[METRICS[name]]
    return Timed(seen - started, resampled - seen, float(figure))


def add_options(parser: ArgumentParser) -> None:
    files = "hypotheses-a.txt and reference0 to reference4, a line an image"
    parser.add_argument("--captions", default="", metavar="DIR", help=f"score its captions: {files}")


def measure(options: Namespace) -> Measured:
    captions = read_captions(Path(options.captions)) if options.captions else make_captions()
    started = time.perf_counter()
    hypotheses, references = split(*captions)
    splitting = time.perf_counter() - started
    images = len(hypotheses)
    copies = (
        np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), size=RESAMPLES).astype(np.float64)
    )
    timed = {name: time_metric(name, hypotheses, references, copies) for name in METRICS}
    figures = [Figure(f"{METRICS[name]}, {images:,} images", timed[name].measuring, "s", "lower") for name in METRICS]
    return Measured([make_table(splitting, timed, images)], figures)


def make_table(splitting: float, timed: dict[str, Timed], images: int) -> Table:
    resampling = f"seconds for {RESAMPLES:,} resampled corpora"
    title = f"scores of {images:,} captions with {REFERENCES} references each"
    table = Table("", "seconds", resampling, "figure", title=title, title_justify="left")
    table.add_row("PTB tokenizer", f"{splitting:.1f}", "", "")
    for name, (measuring, resampled, figure) in timed.items():
        table.add_row(METRICS[name], f"{measuring:.1f}", f"{resampled:.1f}", f"{figure:.2f}")
    without_java = sum(timed[name].measuring for name in timed if name != "meteor")
    table.add_row("all without Java", f"{without_java:.1f}", "", "")
    table.add_row("all", f"{splitting + sum(metric.measuring for metric in timed.values()):.1f}", "", "")
    return table


if __name__ == "__main__":
    main(measure, more_options=add_options)
