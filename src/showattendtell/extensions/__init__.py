"""Side features. The core imports none of them: a folder can be deleted with its options, its tests and its page."""

from contextlib import suppress


def register() -> None:
    """Import the extensions that add themselves to `models.kernels.registered`, unless they were deleted."""
    with suppress(ImportError):
        from showattendtell.extensions import cuda  # noqa: F401
