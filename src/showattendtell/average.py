"""Average the weights of several checkpoints into a new checkpoint."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("average")
def main(config: DictConfig) -> None:
    """Write the averaged checkpoint."""
    import sys

    from showattendtell.inference.checkpoints import save
    from showattendtell.inference.loading import IN_COMMON, average
    from showattendtell.runtime.files import new_file, new_path

    path = new_path(config.output)
    checkpoint, cosine = average(list(config.checkpoint))
    if not cosine >= IN_COMMON:
        print(
            f"warning: the weights of these models have little in common (cosine {cosine:.2f}); if they were trained "
            "from different initial weights, their mean is useless: ensemble them with evaluate 'checkpoint=[...]'",
            file=sys.stderr,
        )
    with new_file(path) as path:
        save(checkpoint, path)
    print(f"{len(config.checkpoint)} models, cosine {cosine:.3f}; written to {path}")


if __name__ == "__main__":
    main()
