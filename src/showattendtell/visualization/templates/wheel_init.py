"""Captions photographs with an exported model.

>>> from {{ package }} import caption
>>> print(caption("photo.jpg"))  # doctest: +SKIP
"""

from .captioner import OnnxCaption, caption

__all__ = ["OnnxCaption", "caption"]
