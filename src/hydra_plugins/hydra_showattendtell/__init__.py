"""Plugins of this package and its extensions. Hydra only accepts plugins in the namespace package `hydra_plugins`."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from showattendtell.config.command_line import PACKAGE, config_folders

__path__ += map(str, PACKAGE.glob("extensions/*/hydra_plugins"))


class ExtensionOptions(SearchPathPlugin):
    """Adds the folder `conf/` of each extension to those in which Hydra looks for options."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in config_folders()[1:]:
            search_path.append("extension", f"file://{folder}")
