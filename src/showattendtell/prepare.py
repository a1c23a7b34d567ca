"""Check a data set, and fill the feature cache with the encoder's grids of its images."""

from showattendtell.config.entry_point import entry_point
from showattendtell.config.schemas import TrainSettings
from showattendtell.loading.hub import check_root


@entry_point("prepare")
def main(settings: TrainSettings) -> None:
    check_root(settings.dataset)
    import sys
    from contextlib import redirect_stdout

    from showattendtell.runtime.distributed import process_group, rank

    with process_group(), redirect_stdout(sys.stdout if rank() == 0 else None):
        _prepare(settings)


def _prepare(settings: TrainSettings) -> None:
    from showattendtell.config.instantiate import build, build_dataset, build_source
    from showattendtell.loading.models import find_initial_checkpoint, training_vocabulary
    from showattendtell.results.tables import print_dataset
    from showattendtell.text.vocabulary import tokenized

    dataset, encoder = build_dataset(settings.dataset), build(settings.encoder)
    origin = find_initial_checkpoint(settings)
    if origin:
        origin.load_encoder(encoder)
    vocabulary = training_vocabulary(settings, origin, dataset)
    dataset = tokenized(dataset, vocabulary.tokenizer)
    print_dataset(dataset, vocabulary)
    if encoder.trainable:
        print("encoder.trainable=true trains from pixels, so no grids are stored")
    else:
        build_source(settings, dataset, encoder)


if __name__ == "__main__":
    main()
