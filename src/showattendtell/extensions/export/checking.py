"""Comparison of exported graphs with PyTorch on the same pixels."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from rich.console import Console
from rich.progress import track

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
from showattendtell.visualization.tables import numeric_table, print_notes

DIFFERENCE = 1e-3
"""Tolerance for log p (relative), alpha and beta; also for different captions to count as equally likely."""

BEAM = 3

TOGETHER = 4
"""Number of images that are captioned at once by the graph that contains the loop; further ones are alone."""

CaptionFunction = Callable[[ndarray], OnnxCaption]
"""Function from the pixels of an image (1, 3, S, S) to its caption."""


class Agreement(NamedTuple):
    """Captions compared with PyTorch's: the number of equal ones, and among these the largest differences of log p
    (relative) and of alpha and beta."""

    same: int
    log_prob: float
    maps: float


def by_pytorch(model: ImageCaptioner, beam: int, max_length: int) -> CaptionFunction:
    """Return the captioning function of the model itself, with its weights prepared once, as graphs have them."""
    decoding = BeamSearch(beam_size=beam, max_length=max_length, allow_unk=False)
    ensemble = ImageCaptionerEnsemble([ImageCaptioner(model.encoder, model.captioner, model.vocabulary, decoding)])

    def caption(pixels: ndarray) -> OnnxCaption:
        with torch.no_grad():
            [[best]] = ensemble.generate([torch.from_numpy(pixels)])
        return OnnxCaption(best.tokens, best.log_prob, best.attention.numpy(), best.gates.numpy())

    return caption


def by_graphs(graphs: Graphs, card: Card, beam: int) -> CaptionFunction:
    """Return the captioning function of exported graphs."""
    return lambda pixels: beam_search(graphs, card, start(graphs, card, pixels), beam)


def check_formats(
    model: ImageCaptioner, folder: Path, formats: Sequence[FormatName], metadata: Card, images: Sequence[ndarray]
) -> dict[tuple[str, str], Agreement]:
    """Caption images (1, 3, S, S), uint8, with PyTorch and with each format, and compare the captions.

    Returns:
        The agreement of each runner with each method of decoding.

    Raises:
        UserError: a format writes other captions than PyTorch, though its weights are those of the model.
    """
    beams = {"greedy": 1, f"beam {BEAM}": BEAM}
    expected = {
        method: list(map(by_pytorch(model, beam, metadata["max_length"]), images)) for method, beam in beams.items()
    }
    found = {}
    for name in formats:
        runner, graphs = FORMATS[name].runner, read_graphs(metadata["graphs"], name, folder)
        exact = name != "onnx" or metadata["precision"] == "float32"
        for method, beam in beams.items():
            captions = list(map(by_graphs(graphs, metadata, beam), images))
            found[runner, method] = compare(captions, expected[method], metadata, runner, exact)
        if "greedy" in graphs:
            captions = []
            for batch in (images[:TOGETHER], *([image] for image in images[TOGETHER:])):
                captions += greedy_search(graphs, metadata, np.concatenate(batch))
            found[runner, "in one graph"] = compare(captions, expected["greedy"], metadata, runner, exact)
    return found


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
            pairs = ((caption.attention, other.attention), (caption.gates, other.gates))
            difference = max(float(np.abs(own - its).max()) for own, its in pairs)
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
    fine = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    return list((255 * fine.clamp(0, 1)).byte().unsqueeze(1).numpy())


def print_agreement(found: Mapping[tuple[str, str], Agreement], pictures: int, noun: str) -> None:
    """Print the number of captions equal to PyTorch's, and the largest differences."""
    table = numeric_table("", ("method", "same", "log p", "attention"), title=f"{pictures} {noun}")
    for (runner, method), (same, log_prob, maps) in found.items():
        table.add_row(runner, method, f"{same} of {pictures}", f"{100 * log_prob:.4f} %", f"{maps:.0e}")
    table.caption = "same: captions equal to PyTorch's; log p, attention: the largest difference"
    Console(highlight=False).print(table)
    print_notes(
        f"{runner}, {method}: {pictures - same} of {pictures} captions differ from PyTorch's, with the same log "
        "probability up to rounding"
        for (runner, method), (same, log_prob, _) in found.items()
        if same < pictures and log_prob <= DIFFERENCE
    )


def score_writers(
    writers: Mapping[str, CaptionFunction], model: ExportModel, dataset: Dataset, split: str
) -> dict[str, dict[str, float]]:
    """Caption the images of a split in several ways, and return BLEU and CIDEr-D of each, as `evaluate` does.

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


def print_files(files: Mapping[str, Any]) -> None:
    table = numeric_table("file", ["MB"])
    for name, file in files.items():
        table.add_row(name, f"{file['bytes'] / 1e6:,.2f}")
    Console(highlight=False).print(table)
