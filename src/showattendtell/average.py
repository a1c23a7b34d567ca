"""Average the weights of several checkpoints into a new checkpoint."""

from showattendtell.config.entry_point import entry_point
from showattendtell.config.schemas import AverageSettings
from showattendtell.loading.hub import find_model
from showattendtell.runtime.files import new_file, new_path


@entry_point("average")
def main(settings: AverageSettings) -> None:
    """Write the averaged checkpoint."""
    path = new_path(settings.output)
    for name in settings.checkpoint:  # before torch is imported
        find_model(name)
    from showattendtell.loading.checkpoints import save
    from showattendtell.loading.models import average

    checkpoint = average(list(settings.checkpoint))
    with new_file(path) as path:
        save(checkpoint, path)
    print(f"{len(settings.checkpoint)} models; written to {path}")


if __name__ == "__main__":
    main()
