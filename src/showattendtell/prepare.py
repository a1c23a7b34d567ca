"""Checks a data set and stores the encoder's grids of its images."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> None:
    from showattendtell.config.build import build, build_source
    from showattendtell.errors import UserError
    from showattendtell.report.tables import print_dataset

    dataset, encoder = build(config.dataset), build(config.encoder)
    sentences = [caption.words for example in dataset.split("train") for caption in example.captions]
    print_dataset(dataset, build(config.vocabulary, captions=sentences))
    if encoder.trainable:
        raise UserError("encoder.trainable=true trains from pixels and stores no grids; there is nothing to prepare")
    build_source(config, dataset, encoder)


main = entry_point("prepare", run)

if __name__ == "__main__":
    main()
