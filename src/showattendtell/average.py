"""Average the weights of several checkpoints into a new checkpoint."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("average")
def main(config: DictConfig) -> None:
    """Write the averaged checkpoint.

    Raises:
        UserError: if it would overwrite one of its inputs.
    """
    import sys
    from pathlib import Path

    from showattendtell.errors import UserError
    from showattendtell.inference.checkpoints import save
    from showattendtell.inference.loading import find_model
    from showattendtell.inference.weight_averaging import IN_COMMON, average
    from showattendtell.visualization.result_files import starts_with, writable

    path = Path(config.output).expanduser()
    if path.resolve() in [find_model(name).resolve() for name in config.checkpoint]:
        raise UserError(
            f"output={path} is one of the averaged checkpoints; set output to another file, such as "
            "output=runs/mean/best.ckpt"
        )
    writable(path, starts_with("PK"))  # checkpoints are zip files
    checkpoint, cosine = average(list(config.checkpoint))
    if not cosine >= IN_COMMON:
        print(
            f"warning: the weights of these models have little in common (cosine {cosine:.2f}); if they were trained "
            "from different initial weights, their mean is useless: ensemble them with evaluate 'checkpoint=[...]'",
            file=sys.stderr,
        )
    save(checkpoint, path)
    print(f"{len(config.checkpoint)} models, cosine {cosine:.3f}; written to {path}")


if __name__ == "__main__":
    main()
