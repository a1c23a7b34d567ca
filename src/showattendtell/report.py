"""Print a table of results next to the paper's."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("report", positional="runs")
def main(config: DictConfig) -> None:
    from pathlib import Path

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


if __name__ == "__main__":
    main()
