"""Print the results of a hyperparameter search."""

from showattendtell.config.entry_point import entry_point
from showattendtell.extensions.search import StudySettings


@entry_point("study", positional="folder")
def main(settings: StudySettings) -> None:
    from pathlib import Path

    from showattendtell.extensions.search.study import find_study, report, storage_errors

    for folder in map(Path, settings.folder):
        with storage_errors(folder):
            report(find_study(folder, settings.storage), folder)


if __name__ == "__main__":
    main()
