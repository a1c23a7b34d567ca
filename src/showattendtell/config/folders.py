"""The folders of options: `conf/`, those of the extensions, and the user's own."""

from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from showattendtell.errors import UserError

PACKAGE = Path(__file__).parents[1]


def config_folders() -> list[str]:
    """Return the path of `conf/`, inside the package if installed as a wheel, else at the top of the checkout; then the
    folders with the options of extensions."""
    extensions = sorted(str(folder) for folder in PACKAGE.glob("extensions/*/conf"))
    for folder in (PACKAGE / "conf", PACKAGE.parents[1] / "conf"):
        if (folder / "train.yaml").is_file():
            return [str(folder), *extensions]
    raise UserError(f"the folder conf/ is missing next to {PACKAGE}; reinstall showattendtell")


def command_folder(name: str) -> str:
    """Return the folder of a command's YAML: `conf/`, or `conf/NAME/` if the command has its own config groups."""
    folders = config_folders()
    for folder in folders:
        if Path(folder, name, f"{name}.yaml").is_file():
            return str(Path(folder, name))
    return folders[0]


def find_options(command: str, group: str, own: Iterable[str] = ()) -> list[str]:
    """Return the options of a config group, as `soft`, or `paper/coco` if they are in a subfolder."""
    folder, folders = command_folder(command), config_folders()
    # a command with groups of its own does not share those of training
    shared = folders if folder in folders else [folder]
    roots = [Path(root, group) for root in (*shared, *own)]
    return sorted(str(path.relative_to(root).with_suffix("")) for root in roots for path in root.rglob("*.yaml"))


def read_option(group: str, option: str) -> DictConfig:
    """Return the settings of an option of the core or of an extension.

    Raises:
        UserError: there is no such option.
    """
    for folder in config_folders():
        file = Path(folder, group, f"{option}.yaml")
        if file.is_file():
            return DictConfig(OmegaConf.load(file))
    raise UserError(f"there is no {group}={option}; the extension that has it is not installed")
