"""Caption photographs, or images of a checkpoint's data set: captions as data, an HTML page, and pictures."""

import sys
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

from omegaconf import DictConfig

from showattendtell.config.command_line import as_argument, find_options, read_option
from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.errors import UserError, did_you_mean
from showattendtell.inference.finding import as_list, find_model, model_groups
from showattendtell.runtime.files import new_folder
from showattendtell.settings import is_url


@entry_point("caption", positional="images")
def main(config: DictConfig) -> None:
    if (config.images is None) == (config.split is None):
        raise UserError(
            "give either photographs, as 'showattendtell caption photo.jpg', or a split of the checkpoint's data set, "
            "as split=test"
        )
    images = as_list(config.images or [])
    missing = [image for image in images if not is_url(image) and not Path(image).exists()]
    if images and len(missing) == len(images):
        raise UserError("\n  ".join(f"image {image} does not exist" for image in missing))
    for name in chain.from_iterable(model_groups(config).values()):  # reported before torch is imported
        find_model(name)
    if config.split:
        ignored = {name for name in ("dpi", "overwrite", "resume", "width", "workers") if config[name]}
        if ignored or list(config.formats or ["html"]) != ["html"]:
            raise UserError(
                f"split={config.split} writes one html page; leave formats, width, dpi, overwrite, resume and workers "
                "out"
            )
        from showattendtell.inference.captioning import caption_split

        return caption_split(config)
    from showattendtell.visualization.pages import PICTURES, drawing

    formats = _chosen_formats(config)
    earlier = Path(config.output or "").glob("captions.*")
    resume = config.resume and any(path.name == "captions.jsonl" or path.is_dir() for path in earlier)
    place = nullcontext(Path()) if formats == ["xmp"] else new_folder(config.output, "captions", resume)
    drawer = drawing() if {*PICTURES} & {*formats} else nullcontext(print)
    with place as folder, drawer as draw:  # the process that draws starts before torch is imported
        try:
            if config.workers:
                from showattendtell.config.instantiate import build

                return build(read_option("format", "parquet"))(config, images, folder / "captions.parquet")
            from showattendtell.inference.captioning import caption_photographs

            return caption_photographs(config, images, formats, folder, draw)
        except KeyboardInterrupt:
            if formats != ["xmp"] and any(folder.glob("captions.*")):
                print(_describe_rest(config, folder), file=sys.stderr)
            raise


def _describe_rest(config: DictConfig, folder: Path) -> str:
    """Return what an interrupted command has left, and how to continue, if its formats allow that."""
    from showattendtell.visualization.caption_rows import can_resume

    kept = f"interrupted; {folder} has the captions so far"
    if config.formats and not config.workers and not can_resume(config.formats):
        return kept
    return f"{kept}; the same command continues with {as_argument('output', folder)} resume=true"


def _chosen_formats(config: DictConfig) -> list[str]:
    """Return the formats to write, each once.

    Raises:
        UserError: they cannot be written in several processes or after an interruption, if that is set.
    """
    from showattendtell.visualization.caption_rows import ROWS, can_resume
    from showattendtell.visualization.pages import PANELS, PICTURES

    default = ["parquet"] if config.workers else [*ROWS] if config.resume else [*ROWS, "html"]
    formats = list(dict.fromkeys(config.formats or default))
    known = [*ROWS, "html", *PICTURES, *find_options("format")]
    for name in formats:
        if name not in known:
            raise UserError(f"formats={name}: there is no format '{name}'{did_you_mean(name, known)}")
    is_parquet = formats == ["parquet"]
    if is_parquet != bool(config.workers) or ("parquet" in formats and not is_parquet):
        raise UserError("workers=N and formats=[parquet] only work together; give both or neither")
    if (config.width or config.dpi) and not {*PANELS} & {*formats}:
        raise UserError("width and dpi are those of pictures with panels; give formats=[png], or leave them out")
    if config.resume and config.output is None:
        raise UserError("resume=true needs the folder of the captions so far; give it as output=FOLDER")
    if config.resume and not is_parquet and not can_resume(formats):
        raise UserError(
            f"resume=true does not support formats=[{','.join(formats)}]; give jsonl, optionally with csv or xmp"
        )
    return formats


if __name__ == "__main__":
    main()
    exit_process()
