"""Makes one checkpoint of several, whose weights are the mean of theirs."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> None:
    import sys
    from pathlib import Path

    import torch

    from showattendtell.averaging import IN_COMMON, average
    from showattendtell.files import whole_file
    from showattendtell.portable import beside
    from showattendtell.report.results import writable

    given = beside(config.checkpoint[0], "average.ckpt") if config.output is None else Path(config.output)
    path = writable(given.expanduser())
    made = average(list(config.checkpoint))
    if made.cosine < IN_COMMON:
        print(
            f"warning: the weights of these models have little in common (cosine {made.cosine:.2f}); where none began "
            "with another's their mean writes nonsense, and they should write together: evaluate 'checkpoint=[...]'",
            file=sys.stderr,
        )
    with whole_file(path) as stream:
        torch.save(made.checkpoint, stream)
    print(f"{len(config.checkpoint)} models, cosine {made.cosine:.3f}; written to {path}")


main = entry_point("average", run)

if __name__ == "__main__":
    main()
