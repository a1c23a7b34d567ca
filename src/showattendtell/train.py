"""Trains a captioner and writes its best and last checkpoint, its curves and its log into the run's folder."""

from omegaconf import DictConfig

from showattendtell.config.entry import as_argument, choices, entry_point, run_folder


def run(config: DictConfig) -> float:
    """The best validation figure of those that `selection` goes by: BLEU-4 in percent, or -log p per word."""
    import pytorch_lightning as lightning

    from showattendtell.checkpoint import write_card
    from showattendtell.config.build import build, build_source
    from showattendtell.report.tables import print_dataset
    from showattendtell.training import build_module, build_trainer

    lightning.seed_everything(config.seed, verbose=False)
    dataset, encoder = build(config.dataset), build(config.encoder)
    source, dataset = build_source(config, dataset, encoder)
    sentences = [caption.words for example in dataset.split("train") for caption in example.captions]
    vocabulary = build(config.vocabulary, captions=sentences)
    print_dataset(dataset, vocabulary)

    data = build(config.data, dataset=dataset, vocabulary=vocabulary, source=source, seed=config.seed)
    module = build_module(config, encoder, vocabulary, write_card(config, choices(), vocabulary, encoder, dataset))
    folder = run_folder()
    trainer, keeper = build_trainer(config, folder)
    trainer.fit(module, data)
    if not keeper.best_model_path:
        print("no epoch ended with a validation, so there is no best checkpoint")
        return 0.0
    print(f"the best checkpoint is {folder / 'best.ckpt'}; score it on the test images with")
    print(f"  python -m showattendtell.evaluate {as_argument('checkpoint', folder / 'best.ckpt')}")
    return float(keeper.best_model_score or 0)


main = entry_point("train", run)

if __name__ == "__main__":
    main()
