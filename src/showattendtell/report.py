"""Print a table of results next to the paper's."""

from showattendtell.config.entry_point import entry_point
from showattendtell.config.schemas import ReportSettings, as_list


@entry_point("report", positional="runs")
def main(settings: ReportSettings) -> None:
    from pathlib import Path

    from showattendtell.errors import UserError, did_you_mean
    from showattendtell.results.comparison import compare
    from showattendtell.results.files import find_results
    from showattendtell.results.tables import HEADINGS, check_format, format_table, print_overview
    from showattendtell.runtime.files import new_path, write_new

    for column in settings.columns:
        if column not in HEADINGS:
            raise UserError(f"there is no column {column}{did_you_mean(column, HEADINGS)}")
    files = as_list(settings.output or [])
    for file in files:
        check_format(Path(file))
    paths = list(map(new_path, files))
    results = find_results(as_list(settings.runs), settings.split)
    overview = compare(results, settings.columns, with_paper=settings.paper)
    # before standard output, which a pipe may close
    written = write_new({path: format_table(overview, path).encode() for path in paths})
    print_overview(overview)
    for path in written:
        print(f"written to {path}")


if __name__ == "__main__":
    main()
