"""Plugins of this package and its extensions. Hydra only accepts plugins in the namespace package `hydra_plugins`."""

from showattendtell.config.folders import PACKAGE

__path__ += map(str, PACKAGE.glob("extensions/*/hydra_plugins"))
