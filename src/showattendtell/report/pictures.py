"""Pictures, from matplotlib to a file."""

from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from showattendtell.errors import UserError
from showattendtell.files import whole_file


def save_picture(figure: Figure, path: Path, setting: str, dpi: int) -> None:
    """Write a figure and close it; a `UserError` that names the setting of the place where that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            figure.savefig(stream, format=path.suffix.removeprefix("."), dpi=dpi)
    except OSError as fault:
        raise UserError(f"{path} cannot be written ({fault.strerror}); set {setting}") from None
    finally:
        plt.close(figure)


def picture_content(figure: Figure, form: str, dpi: int) -> bytes:
    """What `save_picture` writes into a file of that form, such as `png`."""
    content = BytesIO()
    try:
        figure.savefig(content, format=form, dpi=dpi)
    finally:
        plt.close(figure)
    return content.getvalue()
