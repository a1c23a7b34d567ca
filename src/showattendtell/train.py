"""Trains a captioner and writes its best and last checkpoint, its curves and its log into the run's folder."""

from pathlib import Path
from typing import SupportsFloat

from omegaconf import DictConfig

from showattendtell.config.entry import as_argument, chosen, entry_point, is_first_process, run_folder, search_root
from showattendtell.errors import UserError


def run(config: DictConfig) -> float:
    """The best validation figure of those that `selection` goes by: BLEU-4 in percent, CIDEr, or -log p per word; where
    there are stages that of the last."""
    if config.decoding.get("mirrored"):
        raise UserError("decoding.mirrored is for captions of a trained model; leave it out of training")
    if config.stages:
        from showattendtell.stages import run_stages

        return run_stages(config)
    from showattendtell.launching import launch

    return launch(train, config)


def train(config: DictConfig) -> float:
    """In one process, or in each of several that train as one."""
    import pytorch_lightning as lightning

    from showattendtell.checkpoint import write_card
    from showattendtell.config.build import build, build_source
    from showattendtell.origin import find_origin
    from showattendtell.processes import agree, ending_together
    from showattendtell.report.tables import print_dataset
    from showattendtell.resuming import find_start, held, refuse_other_data
    from showattendtell.training import build_module, build_trainer, fit

    lightning.seed_everything(config.seed, verbose=False)
    start = agree(lambda: find_start(config, run_folder(), search_root()))
    if start.finished:
        print(f"{start.folder} is finished")
        return tell_best(start.folder, start.best)
    with held(start.folder):
        with ending_together():
            dataset, encoder = build(config.dataset), build(config.encoder)
            origin = find_origin(config)
            if origin:
                origin.tune(encoder)
            source, dataset = build_source(config, dataset, encoder)
            sentences = [caption.words for example in dataset.split("train") for caption in example.captions]
            vocabulary = origin.vocabulary if origin else build(config.vocabulary, captions=sentences)
            print_dataset(dataset, vocabulary)

            data = build(config.data, dataset=dataset, vocabulary=vocabulary, source=source, seed=config.seed)
            card = write_card(config, chosen(), vocabulary, encoder, dataset)
            refuse_other_data(start, card)
            module = build_module(config, encoder, vocabulary, card, dataset.split("train"))
            if origin:
                origin.teach(module.captioner)
            trainer, best = build_trainer(config, start.folder)
        fit(trainer, module, data, start.checkpoint)
    return tell_best(start.folder, best.best_model_score)


def tell_best(folder: Path, score: SupportsFloat | None) -> float:
    """Print what to do with the best checkpoint, and return its figure; 0 where there is none."""
    if score is None:
        print("no epoch ended with a validation, so there is no best checkpoint")
        return 0.0
    print(f"the best checkpoint is {folder / 'best.ckpt'}; score it on the test images with")
    print(f"  python -m showattendtell.evaluate {as_argument('checkpoint', folder / 'best.ckpt')}")
    return float(score)


def expanded(arguments: list[str]) -> list[str]:
    """With the folder of a run as `resume`, that run's arguments and those that are given besides; in a process that is
    not the first, with no folder of its own."""
    if any(argument.startswith("resume=") for argument in arguments):
        from showattendtell.resuming import recall

        arguments = recall(arguments)
    return arguments if is_first_process() else [*arguments, "hydra.run.dir=.", "hydra.output_subdir=null"]


main = entry_point("train", run, expand=expanded)

if __name__ == "__main__":
    main()
