"""Puts results beside each other and beside the paper's, as its Table 1 does."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> None:
    from pathlib import Path

    from showattendtell.report.comparison import compare
    from showattendtell.report.layout import find_format, print_overview
    from showattendtell.report.result_files import find_results
    from showattendtell.report.results import write_text

    files = [config.output] if isinstance(config.output, str) else config.output or []
    formats = [find_format(file) for file in files]
    results = find_results([config.runs] if isinstance(config.runs, str) else config.runs, config.split)
    overview = compare(results, config.columns, with_paper=config.paper)
    print_overview(overview)
    for file, form in zip(files, formats, strict=True):
        write_text(form(overview), Path(file))
        print(f"written to {file}")


main = entry_point("table", run, positional="runs")

if __name__ == "__main__":
    main()
