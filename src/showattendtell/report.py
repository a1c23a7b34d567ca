"""Print a table of results next to the paper's."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("report", positional="runs")
def main(config: DictConfig) -> None:
    from pathlib import Path

    from showattendtell.errors import UserError, did_you_mean
    from showattendtell.runtime.files import new_path
    from showattendtell.visualization.comparison import compare
    from showattendtell.visualization.result_files import find_results, write_all
    from showattendtell.visualization.tables import HEADINGS, check_format, format_table, print_overview

    for column in config.columns:
        if column not in HEADINGS:
            raise UserError(f"there is no column {column}{did_you_mean(column, HEADINGS)}")
    files = [config.output] if isinstance(config.output, str) else config.output or []
    for file in files:
        check_format(Path(file))
    paths = list(map(new_path, files))
    results = find_results([config.runs] if isinstance(config.runs, str) else config.runs, config.split)
    overview = compare(results, config.columns, with_paper=config.paper)
    # before standard output, which a pipe may close
    written = write_all({path: format_table(overview, path).encode() for path in paths})
    print_overview(overview)
    for path in written:
        print(f"written to {path}")


if __name__ == "__main__":
    main()
