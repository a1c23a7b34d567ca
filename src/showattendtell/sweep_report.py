"""Tells what a search has found, on the screen and as a page for a browser."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> None:
    from pathlib import Path

    from showattendtell.config.search import report
    from showattendtell.config.trial import find_study

    [folder] = [config.study] if isinstance(config.study, str) else config.study
    report(find_study(Path(folder), config.storage), Path(folder))


main = entry_point("sweep_report", run, positional="study")

if __name__ == "__main__":
    main()
