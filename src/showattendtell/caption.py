"""Caption photographs, or images of a checkpoint's data set: captions as data, an HTML page, and pictures."""

import sys
from collections.abc import Sequence
from pathlib import Path

from showattendtell.config.command_line import as_argument, find_options
from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.config.schemas import CaptionSettings, as_list
from showattendtell.errors import UserError, did_you_mean
from showattendtell.loading.hub import find_model
from showattendtell.runtime.files import new_folder
from showattendtell.settings import PictureStyle, is_url

PICTURE = ", ".join(PictureStyle._fields)


@entry_point("caption", positional="images")
def main(settings: CaptionSettings) -> None:
    if (settings.images is None) == (settings.split is None):
        raise UserError(
            "give either photographs, as 'showattendtell caption photo.jpg', or a split of the checkpoint's data set, "
            "as split=test"
        )
    images = as_list(settings.images or [])
    missing = [image for image in images if not is_url(image) and not Path(image).exists()]
    if images and len(missing) == len(images):
        raise UserError("\n  ".join(f"image {image} does not exist" for image in missing))
    for name in settings.checkpoints:  # reported before torch is imported
        find_model(name)
    if settings.split:
        others = settings.resume or settings.workers or any(settings.style)
        if others or list(settings.formats or ["html"]) != ["html"]:
            raise UserError(
                f"split={settings.split} writes one html page; leave formats, {PICTURE}, resume and workers out"
            )
        from showattendtell.inference.captioning import caption_split

        return caption_split(settings, settings.split)
    if any(vars(settings.dataset).values()):
        raise UserError("dataset settings are for images of a split; give split=test, or leave them out")
    formats = _chosen_formats(settings)
    resume = settings.resume and Path(settings.output or "", "captions.jsonl").exists()
    with new_folder(settings.output, "captions", resume) as folder:
        try:
            from showattendtell.inference.captioning import caption_photographs

            return caption_photographs(settings, images, formats, folder)
        except KeyboardInterrupt:
            if any(folder.glob("captions.*")):
                print(_describe_rest(settings.formats, folder), file=sys.stderr)
            raise


def _describe_rest(formats: Sequence[str] | None, folder: Path) -> str:
    """Return what an interrupted command has left, and how to continue, if its formats allow that."""
    from showattendtell.results.rows import can_resume

    kept = f"interrupted; {folder} has the captions so far"
    if formats and not can_resume(formats):
        return kept
    return f"{kept}; the same command continues with {as_argument('output', folder)} resume=true"


def _chosen_formats(settings: CaptionSettings) -> list[str]:
    """Return the formats to write, each once.

    Raises:
        UserError: there is no such format, or it cannot be written in several processes or after an interruption, if
            that is set.
    """
    from showattendtell.results.rows import ROWS, can_resume
    from showattendtell.visualization.pages import PICTURES

    default = [*ROWS] if settings.resume or settings.workers else [*ROWS, "html"]
    formats = list(dict.fromkeys(settings.formats or default))
    known = [*ROWS, "html", *PICTURES, *find_options("format")]
    for name in formats:
        if name not in known:
            raise UserError(f"formats={name}: there is no format '{name}'{did_you_mean(name, known)}")
        if settings.workers and name in ("html", *PICTURES):
            raise UserError(f"workers={settings.workers} writes rows; leave {name} out of formats")
    if any(settings.style) and not {*PICTURES} & {*formats}:
        raise UserError(f"{PICTURE} are settings of pictures; give formats=[png], or leave them out")
    if settings.colormap:
        from showattendtell.visualization.figures import find_colormap

        find_colormap(settings.colormap)
    if settings.resume and settings.output is None:
        raise UserError("resume=true needs the folder of the captions so far; give it as output=FOLDER")
    if settings.resume and not can_resume(formats):
        raise UserError(f"resume=true does not support formats=[{','.join(formats)}]; give jsonl, optionally with csv")
    return formats


if __name__ == "__main__":
    main()
    exit_process()
