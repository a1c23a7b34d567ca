"""Time of the metrics on 5,000 images with five references each; captions are generated, or read from a folder."""

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import CannotRunError, Results, main
from benchmarks.harness.timing import seconds_of
from showattendtell.metrics.modular import measure as measure_captions
from showattendtell.metrics.tokenizers import split_sentences

IMAGES, REFERENCES, VOCABULARY_SIZE = 5000, 5, 8000
RESAMPLES = 1000
METRICS = ("bleu", "rouge_l", "cider", "meteor")
"""METEOR's time includes the start of Java."""

Sentences = list[str]


def make_captions() -> tuple[Sentences, list[Sentences]]:
    """Return captions of 8 to 15 words by Zipf's law, and references that share half of the words of their caption."""
    draw = random.Random(0)
    words = [f"word{n}" for n in range(VOCABULARY_SIZE)]
    frequencies = [1 / rank for rank in range(1, VOCABULARY_SIZE + 1)]

    def write(caption: Sequence[str]) -> str:
        kept = draw.sample(caption, len(caption) // 2)
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
    """Return the words of captions, and of each image's references, from one run of the PTB tokenizer."""
    words = split_sentences([*hypotheses, *(caption for file in references for caption in file)], "ptb")
    images = len(hypotheses)
    return words[:images], [words[image::images][1:] for image in range(images)]


def time_metric(metric: str, hypotheses: list[list[str]], references: list[list[list[str]]]) -> list[Figure]:
    images, rng = len(hypotheses), np.random.default_rng(0)
    resamples = rng.multinomial(images, np.full(images, 1 / images), size=RESAMPLES).astype(np.float64)
    started = time.perf_counter()
    measured, missing = measure_captions(hypotheses, references, [metric])
    seconds = time.perf_counter() - started
    if missing:
        raise CannotRunError(missing[metric])
    resampling = seconds_of(lambda: measured[metric].scores(resamples))
    return [
        Figure(f"{metric}, {images:,} images", seconds, "s", "lower"),
        Figure(f"{metric}, {RESAMPLES:,} resampled corpora", resampling, "s", "lower"),
    ]


def add_options(parser: ArgumentParser) -> None:
    files = "hypotheses-a.txt and reference0 to reference4, one line per image"
    parser.add_argument("--captions", default="", metavar="DIR", help=f"score the captions of this folder: {files}")


def measure(options: Namespace) -> Results:
    captions = read_captions(Path(options.captions)) if options.captions else make_captions()
    started = time.perf_counter()
    hypotheses, references = split(*captions)
    splitting = time.perf_counter() - started
    figures = [Figure(f"PTB tokenizer, {len(hypotheses):,} images", splitting, "s", "lower")]
    for metric in METRICS:
        figures += time_metric(metric, hypotheses, references)
    return Results([], figures)


if __name__ == "__main__":
    main(measure, more_options=add_options)
