"""Print the results of a hyperparameter search."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("study", positional="folder")
def main(config: DictConfig) -> None:
    from pathlib import Path

    from showattendtell.extensions.search.study import report_study

    for folder in config.folder:
        report_study(Path(folder), config.storage)


if __name__ == "__main__":
    main()
