"""Captioning by the commands: the models that a configuration names, and the captions of files, URLs and data sets."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from showattendtell.config.command_line import find_options
from showattendtell.config.compose import as_record
from showattendtell.config.instantiate import build, build_option
from showattendtell.config.schemas import CaptioningSettings, CaptionSettings, Split
from showattendtell.errors import UserError, printable
from showattendtell.images.reading import find_images
from showattendtell.inference.pipeline import BATCH_SIZE, CaptioningPipeline, caption_in_batches
from showattendtell.inference.predictions import evenly_spaced, reference_sentences
from showattendtell.loading.hub import find_model, next_to, note_about
from showattendtell.loading.models import load_models
from showattendtell.results.rows import ROWS, CaptionRow, OutputFormat, resume_rows, row_file
from showattendtell.results.tables import print_notes
from showattendtell.runtime.distributed import num_readers
from showattendtell.runtime.files import new_path, sha256, write_new
from showattendtell.visualization.pages import (
    PICTURES,
    ImageCaptions,
    Page,
    PageEntry,
    make_entry,
    picture_names,
    render,
)

GPU_BATCH_SIZE = 64
"""Default batch size in photographs on a GPU."""


def load_captioners(settings: CaptioningSettings) -> list[CaptioningPipeline]:
    """Return the pipelines of a command's models."""
    decoding = build(settings.decoding)
    return [
        CaptioningPipeline(name, load_models(group, settings.device, decoding, settings.attention), settings.seed)
        for name, group in settings.groups.items()
    ]


def settings_checksum(settings: CaptioningSettings) -> str:
    """Return 16 hexadecimal digits that change with the files of the models and with each setting of a command that
    captions depend on."""
    hashes = [[sha256(find_model(path)) for path in group] for group in settings.groups.values()]
    used = [as_record(settings.decoding), vars(settings.attention), settings.seed]
    return hashlib.sha256(json.dumps([hashes, used]).encode()).hexdigest()[:16]


def caption_all(
    captioners: Sequence[CaptioningPipeline], sources: Sequence[str], errors: list[str]
) -> Iterator[tuple[int, list[ImageCaptions]]]:
    """Caption files and URLs with each pipeline. Yield the index of each source, and its captions by every pipeline.

    Photographs that cannot be read are skipped; their errors are added to `errors`.
    """
    console = Console(stderr=True)
    is_hidden = not console.is_terminal or len(sources) < 2
    on_gpu = any(captioner.device.type == "cuda" for captioner in captioners)
    batch_size = GPU_BATCH_SIZE if on_gpu else BATCH_SIZE
    threads = num_readers() if on_gpu else 0
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=is_hidden, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task("captioning", total=len(sources))
        for i, outputs in caption_in_batches(captioners, sources, batch_size, errors, threads):
            progress.update(task, completed=i + 1)
            yield i, outputs


Captioned = tuple[int, list[list[CaptionRow]], list[ImageCaptions]]
"""The index of a photograph; for every pipeline its rows, and its captions if they are in this process."""


class RowCaptioner:
    """Captions files and URLs in this process, with the models and settings of `caption`."""

    def __init__(self, settings: CaptioningSettings):
        self._captioners = load_captioners(settings)
        self._groups, self._checksum = settings.groups.values(), settings_checksum(settings)

    def __call__(self, sources: Sequence[str], errors: list[str]) -> Iterator[Captioned]:
        """Caption the sources, see `caption_all`."""
        for i, outputs in caption_all(self._captioners, sources, errors):
            rows = [
                [CaptionRow.of(sources[i], caption, group, self._checksum) for caption in output.captions]
                for group, output in zip(self._groups, outputs, strict=True)
            ]
            yield i, rows, outputs


def _make_captioner(settings: CaptionSettings) -> Callable[[Sequence[str], list[str]], Iterator[Captioned]]:
    """Return a `RowCaptioner`, or with `workers=N` the captioner of the option in the config group `captioning`."""
    if not settings.workers:
        return RowCaptioner(settings)
    for option in find_options("captioning"):
        return build_option("captioning", option, settings=settings)
    raise UserError(f"workers={settings.workers}: no extension captions in several processes; leave it out")


def caption_photographs(settings: CaptionSettings, images: Sequence[str], formats: Sequence[str], folder: Path) -> None:
    """Caption each photograph that can be read, and write its captions into a folder: rows, pictures and a page.

    Raises:
        UserError: at the end, about photographs that cannot be read.
    """
    found, errors, note = find_images(images), list[str](), note_about(settings.checkpoints)
    is_single = len(found.sources) == 1
    notes = [note, f"skipped files that are not images: {found.others:,}" if found.others else ""]
    if settings.resume:
        finished = resume_rows(folder, formats, settings_checksum(settings))
        found = found.select({*found.sources} - finished)
        notes.append(f"{len(finished):,} photographs are in {row_file(folder, 'jsonl')}" if finished else "")
    _print_all(f"note: {line}" for line in notes if line)
    models, entries, uncalibrated = list(settings.groups), list[PageEntry](), set[str]()
    stems, suffixes = picture_names(found.names, models), [name for name in formats if name in PICTURES]
    others = [name for name in formats if name not in (*ROWS, "html", *PICTURES)]
    files: list[OutputFormat] = [build_option("format", name, folder=folder) for name in others]
    files += [file(folder) for name, file in ROWS.items() if name in formats]
    captioned = _make_captioner(settings)(found.sources, errors) if found.sources else ()
    try:
        for i, rows, outputs in captioned:
            together = [*chain(*rows)]
            for file in files:
                file.write(together)
            for stem, output in zip(stems[i], outputs, strict=False):
                for suffix in suffixes:
                    write_new({folder / f"{stem}.{suffix}": output.draw(f".{suffix}", settings.style)})
            if "html" in formats:
                entries.append(make_entry(found.names[i], outputs))
            uncalibrated |= {row.checkpoint for row in together if not row.is_calibrated}
            print_rows(dict(zip(models, rows, strict=True)), is_single)
    finally:
        if entries:
            count = "1 photograph" if len(entries) == 1 else f"{len(entries):,} photographs"
            write_new({folder / "index.html": render(Page(count, models, entries, note)).encode()})
        for file in files:
            file.close()
    for kind in find_options("confidence"):
        _print_all(f"note: {name} is not {kind}: its confidence is too high" for name in sorted(uncalibrated))
    if len(errors) < len(found.sources):
        _print_all([f"written to {folder}"])
    if errors:
        raise UserError("\n  ".join(errors))


def _print_all(lines: Iterable[str]) -> None:
    sys.stderr.writelines(f"{printable(line)}\n" for line in lines)


def print_rows(by_model: Mapping[str, Sequence[CaptionRow]], is_single: bool) -> None:
    """Print the captions of a photograph by each model, one per line, preceded by the photograph unless it is the only
    one (`is_single`), and by the model if there are several, and followed by the mark of doubt; separated by tabs."""
    for model, rows in by_model.items():
        for row in rows:
            labels = [*([] if is_single else [row.file]), *([model] if len(by_model) > 1 else [])]
            cells = [*labels, row.caption, *(["not sure"] if row.not_sure else [])]
            print("\t".join(map(printable, cells)), flush=True)


def caption_split(settings: CaptionSettings, split: Split) -> None:
    """Write one page of images of the checkpoint's data set, with their reference captions.

    Raises:
        UserError: at the end, about images that cannot be read, unless `dataset.skip_unreadable` is set.
    """
    from showattendtell.inference.evaluator import open_dataset  # pycocoevalcap takes a while to import
    from showattendtell.metrics.ngrams import SentenceCIDErD
    from showattendtell.metrics.tokenizers import default_scoring_name, split_sentences

    path = new_path(settings.output, next_to(settings.checkpoints[0], f"page-{split}.html"))
    captioners = load_captioners(settings)
    first = captioners[0].models[0]
    stored, dataset = open_dataset(first.settings, settings.dataset, cache=None)
    all_examples = dataset.split(split)
    examples = evenly_spaced(all_examples, settings.num_images)
    references = reference_sentences(all_examples)
    tokenizer = default_scoring_name(first.module.vocabulary.tokenizer)
    words = {image: split_sentences(sentences, tokenizer) for image, sentences in references.items()}
    cider, entries, errors = SentenceCIDErD(words.values()), [], list[str]()
    for i, outputs in caption_all(captioners, [example.path for example in examples], errors):
        image, captions = examples[i].image, split_sentences([output.caption for output in outputs], tokenizer)
        score = mean(cider.percent(caption, words[image]) for caption in captions)
        entries.append(make_entry(image, outputs, references[image], score))
    about = f"{dataset.title}, {len(entries):,} of {len(all_examples):,} images of {split}"
    models = [captioner.name for captioner in captioners]
    page = Page(about, models, entries, note_about(settings.checkpoints))
    [file] = write_new({path: render(page).encode()})
    print(f"written to {file}")
    if stored.dataset and stored.dataset.arguments.get("skip_unreadable"):
        print_notes(errors)
    elif errors:
        raise UserError("\n  ".join(errors))
