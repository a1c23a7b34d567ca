"""Image captioning with visual attention after Xu et al., "Show, Attend and Tell" (ICML 2015)."""

from importlib.metadata import version

__version__ = version("showattendtell")
