"""Scores a checkpoint on a split of its data set."""

from pathlib import Path

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point, raise_all


def run(config: DictConfig) -> float:
    """BLEU-4 without brevity penalty, in percent."""
    from showattendtell.checkpoint import restore
    from showattendtell.config.build import build, find_source, settled
    from showattendtell.config.check import find_faults
    from showattendtell.evaluation import play_pointing_game, write_captions
    from showattendtell.metrics.bleu import bleu
    from showattendtell.records import fingerprint
    from showattendtell.report.results import score_figures, versions, write_json
    from showattendtell.report.tables import print_scores
    from showattendtell.text.tokenize import TOKENIZER

    restored = restore(config.checkpoint, config.device, build(config.decoding))
    trained_with = settled(restored.config, dataset=config.dataset, cache=config.cache)
    raise_all(find_faults(trained_with))
    source, dataset = find_source(trained_with, build(trained_with.dataset), restored.module.encoder)
    examples = dataset.split(config.split)
    images = source(examples)

    written = list(write_captions(restored.module, examples, images))
    scores = bleu([caption.words for caption in written], [caption.references for caption in written])
    pointing = play_pointing_game(restored.module, examples, images)
    figures = score_figures(scores, pointing, len({tuple(caption.words) for caption in written}))
    print_scores(scores, pointing, f"{dataset.name}, {len(examples)} images of {config.split}")

    path = Path(config.output or Path(config.checkpoint).with_name(f"results-{config.split}.json"))
    write_json(
        {
            **figures,
            "dataset": dataset.name,
            "split": config.split,
            "split_sha256": fingerprint(examples),
            "images": len(examples),
            "checkpoint": str(config.checkpoint),
            "checkpoint_sha256": restored.sha256,
            "seed": restored.config.seed,
            "decoding": restored.module.decoding._asdict(),
            "tokenizer": TOKENIZER,
            "versions": versions(),
            "captions": {caption.image: " ".join(caption.words) for caption in written},
        },
        path,
    )
    print(f"written to {path}")
    return scores.without_penalty[3]


main = entry_point("evaluate", run)

if __name__ == "__main__":
    main()
