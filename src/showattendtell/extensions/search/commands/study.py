"""Print the results of a hyperparameter search."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("study", positional="folder")
def main(config: DictConfig) -> None:
    from pathlib import Path

    from showattendtell.extensions.search.study import find_study, report, storage_errors

    for folder in map(Path, config.folder):
        with storage_errors(folder):
            report(find_study(folder, config.storage), folder)


if __name__ == "__main__":
    main()
