"""Caption photographs, or images of a checkpoint's data set: captions as data, an HTML page, and pictures."""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.config.folders import find_options, read_option
from showattendtell.errors import UserError, did_you_mean, printable
from showattendtell.runtime.files import new_folder, new_path
from showattendtell.settings import is_url

PAGE = "html"
PANELS = ("png", "svg", "pdf")
PICTURES = (*PANELS, "gif", "webp")
XMP = "xmp"
PARQUET = "parquet"
ROWS = ("jsonl", "csv")
FOLDER, INDEX, JOURNAL = "captions", "index.html", "captions.jsonl"


@entry_point("caption", positional="images")
def main(config: DictConfig) -> None:
    if (config.images is None) == (config.split is None):
        raise UserError(
            "give photographs, as images=photo.jpg, or a split of the checkpoint's data set, as split=test; not both"
            if config.images
            else "images is not set; give it as images=..., or images of the checkpoint's data set as split=test"
        )
    if config.split:
        return _caption_split(config)
    images = [config.images] if isinstance(config.images, str) else config.images
    missing = [image for image in images if not is_url(image) and not Path(image).exists()]
    if len(missing) == len(images):  # reported before torch is imported
        raise UserError("; ".join(f"image {image} does not exist" for image in missing))
    formats = _chosen_formats(config)
    from showattendtell.visualization.pages import drawing

    draws = any(suffix in PICTURES for suffix in formats)
    earlier = Path(config.output or FOLDER).glob("captions.*")
    resume = config.resume and any(path.name == JOURNAL or path.is_dir() for path in earlier)
    place = nullcontext(Path()) if formats == [XMP] else new_folder(config.output, FOLDER, resume)
    # the process that draws starts before torch is imported
    with place as folder, drawing() if draws else nullcontext(print) as draw:
        if config.workers:
            from showattendtell.config.instantiate import build

            return build(read_option("format", PARQUET))(config, images, folder / f"captions.{PARQUET}")
        return _caption_photographs(config, images, formats, folder, draw)


def _chosen_formats(config: DictConfig) -> list[str]:
    """Return the formats to write, each once.

    Raises:
        UserError: they cannot be written in several processes or after an interruption, if that is set.
    """
    default = [*ROWS] if config.resume else [*ROWS, PAGE]
    formats = list(dict.fromkeys(config.formats or ([PARQUET] if config.workers else default)))
    known = [*ROWS, PAGE, *PICTURES, *find_options("caption", "format")]
    for name in formats:
        if name not in known:
            raise UserError(f"formats={name}: there is no format '{name}'{did_you_mean(name, known)}")
    is_parquet = formats == [PARQUET]
    if is_parquet != bool(config.workers) or (PARQUET in formats and not is_parquet):
        raise UserError("workers=N and formats=[parquet] only work together; give both or neither")
    if (config.width or config.dpi) and not {*PANELS} & {*formats}:
        raise UserError("width and dpi are those of pictures with panels; give formats=[png], or leave them out")
    if config.resume and config.output is None:
        raise UserError("resume=true needs the folder of the captions so far; give it as output=FOLDER")
    if config.resume and not is_parquet and not _is_resumable(formats):
        raise UserError(
            f"resume=true does not support formats=[{','.join(formats)}]; give jsonl, optionally with csv or xmp"
        )
    return formats


def _is_resumable(formats: Iterable[str]) -> bool:
    return {"jsonl"} <= {*formats} <= {*ROWS, XMP}


def _caption_photographs(
    config: DictConfig, images: Sequence[str], formats: Sequence[str], folder: Path, draw: Callable[..., None]
) -> None:
    """Caption each photograph that can be read, then raise a `UserError` about the others."""
    from showattendtell.config.instantiate import build
    from showattendtell.data.images import find_images
    from showattendtell.inference.captioning import (
        caption_all,
        checkpoint_groups,
        load_captioners,
        model_names,
        settings_checksum,
        warn_of_size,
    )
    from showattendtell.inference.loading import note_about
    from showattendtell.visualization.caption_rows import CaptionRow, resume_rows, row_file, row_writer
    from showattendtell.visualization.pages import Page, make_entry, picture_names, write_page

    found, groups, errors = find_images(images), checkpoint_groups(config), list[str]()
    describe = None
    if XMP in formats:
        describe = build(read_option("format", XMP))(found.sources, config.overwrite, errors)
    is_single, skipped = len(found.sources) == 1, found.others
    if describe and list(formats) == [XMP]:
        found = found.select(describe.pending(found.sources))
    if PAGE in formats:
        warn_of_size(len(found.sources), "formats=[jsonl,csv] writes none")
    captioners = load_captioners(config) if found.sources else []
    for captioner in captioners:
        captioner.check_reads_pixels()
    note = note_about(chain.from_iterable(groups))
    _print_notes([note, f"skipped files that are not images: {skipped:,}" if skipped else ""])
    models, settings = [captioner.name for captioner in captioners], settings_checksum(config)
    num_photographs = len(found.sources)
    if config.resume:
        finished = resume_rows(folder, formats, settings)
        _print_notes([f"{len(finished):,} photographs are in {folder / JOURNAL}" if finished else ""])
        found = found.select({*found.sources} - finished)
    num_written = num_photographs - len(found.sources)
    names, suffixes = picture_names(found.names, model_names(config)), [name for name in formats if name in PICTURES]
    write_rows = row_writer(folder, formats)
    entries, has_drawn = list[Any](), False
    try:
        for i, outputs in caption_all(captioners, found.sources, errors):
            source = found.sources[i]
            if describe:
                describe(source, outputs[0].best.marked)
            rows = []
            for group, output in zip(groups, outputs, strict=True):
                rows += [CaptionRow.of(source, caption, " + ".join(group), settings) for caption in output.captions]
            write_rows(rows)
            pictures = list[Path]()
            for name, output in zip(names[i], outputs, strict=True):
                for suffix in suffixes:
                    pictures.append(folder / f"{name}.{suffix}")
                    draw(output.as_drawn(), pictures[-1], config.width, config.dpi)
            _print_captions(source, list(zip(models, outputs, strict=True)), pictures, is_single)
            has_drawn |= bool(pictures)
            if PAGE in formats:
                entries.append(make_entry(found.names[i], outputs))
            num_written += 1
    except BaseException:  # also Ctrl-C and SIGTERM
        is_resumable = config.formats is None or _is_resumable(formats)
        advice = f"; to continue, add output={folder} resume=true to the command" if is_resumable else ""
        progress = f"stopped: {num_written:,} of {num_photographs:,} photographs are written"
        print(printable(progress + advice), file=sys.stderr)
        raise
    finally:
        if entries:
            count = "1 photograph" if len(entries) == 1 else f"{len(entries):,} photographs"
            write_page(Page(count, models, entries, note), folder / INDEX)
        patterns = [(folder / "*" if len(models) > 1 else folder) / f"*.{suffix}" for suffix in suffixes]
        tables = [row_file(folder, suffix) for suffix in ROWS if suffix in formats]
        _print_written(tables, folder / INDEX, patterns if has_drawn else [])
        for line in describe.summary() if describe else []:
            print(line, file=sys.stderr)
    if errors:
        raise UserError("; ".join(errors))


def _print_written(rows: Sequence[Path], page: Path, pictures: Sequence[Path]) -> None:
    """Print the files that exist, and the patterns of the pictures."""
    paths = [*(path for path in (*rows, page) if path.is_file()), *pictures]
    if paths:
        print(printable(f"written: {', '.join(map(str, paths))}"), file=sys.stderr)


def _print_captions(source: str, outputs: Sequence[tuple[str, Any]], pictures: Sequence[Path], is_single: bool) -> None:
    """Print the captions of a photograph by each model: on a terminal as a report, else one per line, preceded by the
    photograph unless it is the only one (`is_single`), and by the model if there are several, and followed by the mark
    of doubt; separated by tabs.

    Args:
        outputs: the name of each model, and its `ImageCaptions`.
    """
    if not sys.stdout.isatty():
        for model, output in outputs:
            labels = [] if is_single else [source]
            labels += [model] if len(outputs) > 1 else []
            for caption in output.captions:
                cells = [*labels, caption.caption, *(["not sure"] if caption.unsure else [])]
                print("\t".join(map(printable, cells)), flush=True)
        return
    (_, first), *others = outputs
    lines = [f"{source}: {first.best.marked}"]
    lines += [f"  also: {caption.caption}" for caption in first.captions[1:]]
    lines += [f"  {model}: {output.best.marked}" for model, output in others]
    lines += [f"  {path}" for path in pictures]
    for line in lines:
        print(printable(line))


def _print_notes(notes: Iterable[str]) -> None:
    sys.stderr.writelines(f"note: {printable(note)}\n" for note in notes if note)


def _caption_split(config: DictConfig) -> None:
    """Write one page of images of the checkpoint's data set, with their reference captions.

    Raises:
        UserError: at the end, about images that cannot be read, unless `dataset.skip_unreadable` is set.
    """
    from showattendtell.config.instantiate import build
    from showattendtell.config.validation import raise_errors, validate
    from showattendtell.data.languages import in_language, tokenized
    from showattendtell.data.tokenizers import PlainTokenizer, WordTokenizer
    from showattendtell.inference import captioning
    from showattendtell.inference.loading import next_to, note_about, reading_settings
    from showattendtell.inference.predictions import evenly_spaced, reference_sentences
    from showattendtell.metrics.ngrams import make_scorer
    from showattendtell.visualization.pages import Page, make_entry, write_page
    from showattendtell.visualization.tables import print_notes

    ignored = {name for name in ("dpi", "overwrite", "resume", "width", "workers") if config[name]}
    if ignored or (config.formats is not None and list(config.formats) != [PAGE]):
        raise UserError(
            f"split={config.split} writes one {PAGE} page; leave formats, width, dpi, overwrite, resume and workers out"
        )
    checkpoint = config.checkpoint if isinstance(config.checkpoint, str) else config.checkpoint[0]
    path = new_path(config.output, next_to(checkpoint, f"page-{config.split}.html"))
    captioners = captioning.load_captioners(config)
    settings = reading_settings(captioners[0].config, dataset=config.dataset)
    raise_errors(validate(settings))
    first = captioners[0].models[0].module
    dataset = build(settings.dataset)
    if first.language is not None:
        dataset = in_language(dataset, first.language)
    tokenizer = None if isinstance(first.vocabulary.tokenizer, PlainTokenizer) else WordTokenizer()
    if tokenizer:
        dataset = tokenized(dataset, tokenizer)
    split = dataset.split(config.split)
    examples = evenly_spaced(split, config.number)
    if not any(example.path for example in examples):
        raise UserError(
            f"the data set {dataset.name} has captions without photographs; give a checkpoint of another data set"
        )
    captioning.warn_of_size(len(examples), "a smaller number= gives a smaller one")
    references, entries, errors = reference_sentences(examples), [], list[str]()
    cider = make_scorer([[caption.words for caption in example.captions] for example in split])
    stored = [captioning.stored_regions(captioner, dataset, config, examples) for captioner in captioners]
    for i, outputs in captioning.caption_all(captioners, [each.path for each in examples], errors, stored):
        name, references_of_image = examples[i].image, [caption.words for caption in examples[i].captions]
        captions = [tokenizer.tokenize(output.caption) if tokenizer else output.words for output in outputs]
        score = mean(cider(words, references_of_image) for words in captions)
        entries.append(make_entry(name, outputs, references[name], score))
    about = f"{dataset.name}, {len(entries):,} of {len(split):,} images of {config.split}"
    note = note_about(chain.from_iterable(captioning.checkpoint_groups(config)))
    path = write_page(Page(about, [captioner.name for captioner in captioners], entries, note), path)
    print(f"written to {path}")
    if settings.dataset.get("skip_unreadable"):
        print_notes(errors)
    elif errors:
        raise UserError("; ".join(errors))


if __name__ == "__main__":
    main()
    exit_process()
