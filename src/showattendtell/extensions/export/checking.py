"""Comparison of exported graphs with PyTorch on the same pixels."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from showattendtell.data.languages import in_language
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.errors import UserError
from showattendtell.extensions.export.formats import FORMATS, FormatName, read_graphs
from showattendtell.extensions.export.loading import ExportModel
from showattendtell.extensions.export.run_onnx import (
    Card,
    Graphs,
    OnnxCaption,
    beam_search,
    greedy_search,
    sentence_of,
    start,
)
from showattendtell.inference.matching import MatchedCaptions, in_words
from showattendtell.inference.predictions import reference_sentences
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.tokenizers import default_scoring_name
from showattendtell.types import Dataset
from showattendtell.visualization.tables import print_notes

DIFFERENCE = 1e-3
"""Tolerance for log p (relative), alpha and beta; also for different captions to count as equally likely."""

BEAM = 3
SCORES = ("bleu4", "cider")

TOGETHER = 4
"""Batch size in images of the check that captions several at once."""

CaptionFunction = Callable[[ndarray], OnnxCaption]
"""Function from the pixels of an image (1, 3, S, S) to its caption."""


class Agreement(NamedTuple):
    """Captions compared with PyTorch's: the number of equal ones, and among these the largest differences of log p
    (relative) and of alpha and beta."""

    same: int
    log_prob: float
    maps: float


class TimingRow(NamedTuple):
    """A way of captioning and its milliseconds per image; `outcome` is None for PyTorch itself."""

    runner: str
    method: str
    milliseconds: float
    outcome: Agreement | None


def time_captions(caption: CaptionFunction, images: Sequence[ndarray]) -> tuple[list[OnnxCaption], float]:
    """Return the caption of each image and the median time per image in milliseconds, after one warm-up call."""
    caption(images[0])
    captions, seconds = [], []
    for pixels in images:
        begun = time.perf_counter()
        captions.append(caption(pixels))
        seconds.append(time.perf_counter() - begun)
    return captions, 1000 * statistics.median(seconds)


def by_pytorch(model: ImageCaptioner, beam: int, max_length: int) -> CaptionFunction:
    """Return the captioning function of the model itself, with its weights prepared once, as graphs have them."""
    decoding = BeamSearch(beam_size=beam, max_length=max_length, allow_unk=False)
    ensemble = ImageCaptionerEnsemble([ImageCaptioner(model.encoder, model.captioner, model.vocabulary, decoding)])

    def caption(pixels: ndarray) -> OnnxCaption:
        with torch.no_grad():
            [[best]] = ensemble.generate([torch.from_numpy(pixels)])
        return OnnxCaption(best.tokens, best.log_prob, best.attention.numpy(), best.gates.numpy())

    return caption


def check_formats(
    model: ImageCaptioner, folder: Path, formats: Sequence[FormatName], metadata: Card, images: Sequence[ndarray]
) -> list[TimingRow]:
    """Caption images (1, 3, S, S), uint8, with PyTorch and with each format, and compare the captions.

    Raises:
        UserError: a format writes other captions than PyTorch, though its weights are those of the model.
    """
    expected: list[list[OnnxCaption]] = []
    rows = []
    beams = {"greedy": 1, f"beam {BEAM}": BEAM}
    for method, size in beams.items():
        captions, milliseconds = time_captions(by_pytorch(model, size, metadata["max_length"]), images)
        expected.append(captions)
        rows.append(TimingRow("PyTorch", method, milliseconds, None))
    greedy = expected[0]
    for name in formats:
        runner, graphs = FORMATS[name].runner, read_graphs(metadata["graphs"], name, folder)
        exact = name != "onnx" or metadata["precision"] == "float32"
        methods: list[tuple[str, CaptionFunction, list[OnnxCaption]]] = []
        for (method, size), captions in zip(beams.items(), expected, strict=True):
            methods.append((method, partial(_beam_caption, graphs, metadata, size), captions))
        if "greedy" in graphs:
            methods.append(("in one graph", partial(_greedy_caption, graphs, metadata), greedy))
        for method, writer, others in methods:
            captions, milliseconds = time_captions(writer, images)
            rows.append(TimingRow(runner, method, milliseconds, compare(captions, others, metadata, runner, exact)))
        if "greedy" in graphs:
            batched = greedy_search(graphs, metadata, np.concatenate(images[:TOGETHER]))
            compare(batched, greedy[:TOGETHER], metadata, f"{runner}, given several pictures at once,")
    return rows


def _beam_caption(graphs: Graphs, card: Card, beam: int, pixels: ndarray) -> OnnxCaption:
    return beam_search(graphs, card, start(graphs, card, pixels), beam)


def _greedy_caption(graphs: Graphs, card: Card, pixels: ndarray) -> OnnxCaption:
    return greedy_search(graphs, card, pixels)[0]


def compare(
    captions: Sequence[OnnxCaption], expected: Sequence[OnnxCaption], card: Card, name: str, exact: bool = True
) -> Agreement:
    """Compare captions with those expected; if `exact`, different captions must be equally likely.

    Raises:
        UserError: they are not, or log p or attention of equal captions differ.
    """
    same, log_prob, maps = 0, 0.0, 0.0
    for i, (caption, other) in enumerate(zip(captions, expected, strict=True), start=1):
        off = abs(caption.log_prob - other.log_prob) / max(1, abs(other.log_prob))
        difference = 0.0
        if caption.tokens == other.tokens:
            same += 1
            difference = float(
                max(np.abs(caption.attention - other.attention).max(), np.abs(caption.gates - other.gates).max())
            )
        log_prob, maps = max(log_prob, off), max(maps, difference)
        if exact and not (off <= DIFFERENCE and difference <= DIFFERENCE):
            raise UserError(
                f"{name} says '{sentence_of(caption, card)}' (log p {caption.log_prob:.3f}) of image "
                f"{i}, and PyTorch '{sentence_of(other, card)}' ({other.log_prob:.3f}); their "
                f"attention differs by {difference:.1g}, and nothing is exported: leave that format out"
            )
    return Agreement(same, log_prob, maps)


def generated_images(side: int, number: int) -> list[ndarray]:
    """Return images (1, 3, S, S), uint8, of blurred noise, for which a captioner generates some caption."""
    coarse = torch.rand(number, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    fine = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=False)
    return [image.unsqueeze(0).numpy() for image in (255 * fine.clamp(0, 1)).to(torch.uint8)]


def print_rows(rows: Sequence[TimingRow], pictures: int, noun: str) -> None:
    """Print the number of captions equal to PyTorch's, the largest differences, and the time per image."""
    table = Table("", "method", title=f"{pictures} {noun}, one after the other", title_justify="left")
    for column in ("same", "log p", "attention", "ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for runner, method_rows in groupby(rows, key=lambda row: row.runner):
        for _, method, milliseconds, outcome in method_rows:
            cells = ["", "", ""]
            if outcome:
                cells = [f"{outcome.same} of {pictures}", f"{100 * outcome.log_prob:.4f} %", f"{outcome.maps:.0e}"]
            table.add_row(runner, method, *cells, f"{milliseconds:,.1f}")
            runner = ""
        table.add_section()
    table.caption = "same: captions equal to PyTorch's; log p, attention: the largest difference; ms: per image"
    Console(highlight=False).print(table)
    print_notes(
        f"{row.runner}, {row.method}: {pictures - row.outcome.same} of {pictures} captions differ from "
        "PyTorch's, with the same log probability up to rounding"
        for row in rows
        if row.outcome and row.outcome.same < pictures and row.outcome.log_prob <= DIFFERENCE
    )


def score_on_split(
    model: ExportModel, folder: Path, metadata: Card, dataset: Dataset, split: str
) -> dict[str, dict[str, float]]:
    """Caption the images of a split with the model and with its ONNX graphs; return BLEU-4 and CIDEr-D of each."""
    graphs = read_graphs(metadata["graphs"], "onnx", folder)
    writers: dict[str, CaptionFunction] = {
        "PyTorch": by_pytorch(model.module, BEAM, metadata["max_length"]),
        f"onnxruntime, {metadata['precision']}": partial(_beam_caption, graphs, metadata, BEAM),
    }
    return score_writers(writers, model, dataset, split)


def score_writers(
    writers: Mapping[str, CaptionFunction], model: ExportModel, dataset: Dataset, split: str
) -> dict[str, dict[str, float]]:
    """Caption the images of a split in several ways, and return BLEU-4 and CIDEr-D of each, as `evaluate` does.

    The captions are scored as text; those of a model of several languages are in its first one.
    """
    from showattendtell.metrics.modular import measure  # torchmetrics takes seconds to import

    if model.module.language is not None:
        dataset = in_language(dataset, model.module.language)
    examples, sentences = dataset.split(split), {Path(name): list[str]() for name in writers}
    for example in track(examples, f"captioning {split}", console=Console(stderr=True), transient=True):
        pixels = model.preprocess(example.path)
        for name, writer in writers.items():
            sentences[Path(name)].append(sentence_of(writer(pixels), model.metadata))
    references = reference_sentences(examples)
    matched = MatchedCaptions(list(references), list(references.values()), sentences)
    corpus = in_words(matched, default_scoring_name(model.module.vocabulary.tokenizer))
    print_notes(corpus.notes)
    return {
        str(name): corpus_scores(measure(hypotheses, corpus.references, ["bleu", "cider"]).measured.values())
        for name, hypotheses in corpus.hypotheses.items()
    }


def print_scores(scores: Mapping[str, Mapping[str, float]], title: str) -> None:
    """Print BLEU-4 and CIDEr-D of each writer, and the differences to the first one; nothing without scores."""
    if not scores:
        return
    table = Table("", "BLEU-4", "CIDEr-D", title=title, title_justify="left")
    first = next(iter(scores.values()))
    for name, values in scores.items():
        cells = [f"{values[key]:.1f}" for key in SCORES]
        if values is not first:
            cells = [f"{values[key]:.1f} ({values[key] - first[key]:+.1f})" for key in SCORES]
        table.add_row(name, *cells)
    Console(highlight=False).print(table)


def print_files(files: Mapping[str, Any]) -> None:
    table = Table("file", "MB")
    table.columns[1].justify = "right"
    for name, file in files.items():
        table.add_row(name, f"{file['bytes'] / 1e6:,.2f}")
    Console(highlight=False).print(table)
