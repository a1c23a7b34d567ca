"""Export a checkpoint as graphs that run without this package, or as a page that runs them in a browser."""

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.extensions.export.settings import ExportSettings


@entry_point("export")
def main(settings: ExportSettings) -> None:
    from showattendtell.extensions.export.packages import export

    export(settings)


if __name__ == "__main__":
    main()
    exit_process()
