"""Average the weights of several checkpoints into a new checkpoint."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point
from showattendtell.inference.finding import find_model
from showattendtell.runtime.files import new_file, new_path


@entry_point("average")
def main(config: DictConfig) -> None:
    """Write the averaged checkpoint."""
    path = new_path(config.output)
    for name in config.checkpoint:  # before torch is imported
        find_model(name)
    from showattendtell.inference.checkpoints import save
    from showattendtell.inference.loading import average

    checkpoint = average(list(config.checkpoint))
    with new_file(path) as path:
        save(checkpoint, path)
    print(f"{len(config.checkpoint)} models; written to {path}")


if __name__ == "__main__":
    main()
