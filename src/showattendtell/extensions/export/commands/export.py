"""Export a checkpoint as graphs that run without this package, or as a page that runs them in a browser."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process


@entry_point("export")
def main(config: DictConfig) -> None:
    from showattendtell.extensions.export.packages import export

    export(config)


if __name__ == "__main__":
    main()
    exit_process()
