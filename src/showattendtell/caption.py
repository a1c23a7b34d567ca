"""Caption photographs, or images of a checkpoint's data set: captions as data, an HTML page, and pictures."""

import sys
from itertools import chain
from pathlib import Path

from omegaconf import DictConfig

from showattendtell.config.command_line import as_argument, find_options
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
        others = any(config[name] for name in ("dpi", "resume", "width", "workers"))
        if others or list(config.formats or ["html"]) != ["html"]:
            raise UserError(
                f"split={config.split} writes one html page; leave formats, width, dpi, resume and workers out"
            )
        from showattendtell.inference.captioning import caption_split

        return caption_split(config)
    formats = _chosen_formats(config)
    resume = config.resume and Path(config.output, "captions.jsonl").exists()
    with new_folder(config.output, "captions", resume) as folder:
        try:
            from showattendtell.inference.captioning import caption_photographs

            return caption_photographs(config, images, formats, folder)
        except KeyboardInterrupt:
            if any(folder.glob("captions.*")):
                print(_describe_rest(config, folder), file=sys.stderr)
            raise


def _describe_rest(config: DictConfig, folder: Path) -> str:
    """Return what an interrupted command has left, and how to continue, if its formats allow that."""
    from showattendtell.visualization.caption_rows import can_resume

    kept = f"interrupted; {folder} has the captions so far"
    if config.formats and not can_resume(config.formats):
        return kept
    return f"{kept}; the same command continues with {as_argument('output', folder)} resume=true"


def _chosen_formats(config: DictConfig) -> list[str]:
    """Return the formats to write, each once.

    Raises:
        UserError: there is no such format, or it cannot be written in several processes or after an interruption, if
            that is set.
    """
    from showattendtell.visualization.caption_rows import ROWS, can_resume
    from showattendtell.visualization.pages import PANELS, PICTURES

    default = [*ROWS] if config.resume or config.workers else [*ROWS, "html"]
    formats = list(dict.fromkeys(config.formats or default))
    known = [*ROWS, "html", *PICTURES, *find_options("format")]
    for name in formats:
        if name not in known:
            raise UserError(f"formats={name}: there is no format '{name}'{did_you_mean(name, known)}")
        if config.workers and name in ("html", *PICTURES):
            raise UserError(f"workers={config.workers} writes rows; leave {name} out of formats")
    if (config.width or config.dpi) and not {*PANELS} & {*formats}:
        raise UserError("width and dpi are those of pictures with panels; give formats=[png], or leave them out")
    if config.resume and config.output is None:
        raise UserError("resume=true needs the folder of the captions so far; give it as output=FOLDER")
    if config.resume and not can_resume(formats):
        raise UserError(f"resume=true does not support formats=[{','.join(formats)}]; give jsonl, optionally with csv")
    return formats


if __name__ == "__main__":
    main()
    exit_process()
