"""Output of matplotlib figures to files."""

from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # works without a display
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from showattendtell.errors import UserError
from showattendtell.runtime.files import atomic_write


def save_picture(figure: Figure, path: Path, setting: str, dpi: int) -> None:
    """Write and close a figure; raise a `UserError` that names the setting of the path if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            figure.savefig(stream, format=path.suffix.removeprefix("."), dpi=dpi)
    except OSError as fault:
        raise UserError(f"{path} cannot be written ({fault.strerror}); set {setting}") from None
    finally:
        plt.close(figure)


def picture_content(figure: Figure, form: str, dpi: int) -> bytes:
    """Return a figure encoded in a format such as `png`."""
    content = BytesIO()
    try:
        figure.savefig(content, format=form, dpi=dpi)
    finally:
        plt.close(figure)
    return content.getvalue()
