"""Print a table of results next to the paper's, or the results of a search."""

from pathlib import Path

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point
from showattendtell.errors import UserError

SECONDS, MEMORY = 60, 4 * 2**30
"""The most time and memory, in bytes, that reading the storage of a study takes: a query may have no end."""


@entry_point("report", positional="runs")
def main(config: DictConfig) -> None:
    if (config.runs is None) == (config.study is None):
        raise UserError(
            "give results, as runs=runs/, or a search, as study=runs/NAME-study; not both"
            if config.runs
            else "runs is not set; give it as runs=..., or the folder of a search as study=..."
        )
    if config.study:
        return report_study(Path(config.study), config.storage)

    from showattendtell.visualization.comparison import compare
    from showattendtell.visualization.result_files import find_results, writable
    from showattendtell.visualization.results_table import EARLIER, find_format, print_overview, write_table

    files = [config.output] if isinstance(config.output, str) else config.output or []
    for file in files:
        find_format(file)
    paths = [writable(Path(file), EARLIER[Path(file).suffix]) for file in files]
    results = find_results([config.runs] if isinstance(config.runs, str) else config.runs, config.split)
    overview = compare(results, config.columns, with_paper=config.paper)
    for path in paths:  # before standard output, which a pipe may close
        write_table(overview, path)
    print_overview(overview)
    for path in paths:
        print(f"written to {path}")
    return None


def report_study(folder: Path, storage: str | None) -> None:
    """Print the results of the study in a folder, and write its page."""
    import resource

    from showattendtell.config.study import find_study
    from showattendtell.config.subprocesses import in_own_process
    from showattendtell.config.sweeper import report
    from showattendtell.config.validation import reading

    def read() -> None:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, hard_limit))
        with reading(f"the study in {folder}"):
            find_study(folder, storage).get_trials(deepcopy=False)

    with reading(f"the study in {folder}"):
        in_own_process(read, SECONDS)
        report(find_study(folder, storage), folder)


if __name__ == "__main__":
    main()
