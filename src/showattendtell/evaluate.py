"""Scores a checkpoint on a split of its data set."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> float:
    """BLEU-4 without brevity penalty, in percent."""
    from pathlib import Path

    from showattendtell.config.build import build
    from showattendtell.evaluation import measure_gaze, measure_relations, references, write_captions
    from showattendtell.metrics.bleu import bleu
    from showattendtell.report.results import gaze_figures, score_figures, write_json
    from showattendtell.report.tables import print_gaze, print_scores
    from showattendtell.scoring import open_trial

    trial = open_trial(config, build(config.decoding))
    written = list(write_captions(trial.module, trial.examples, trial.images))
    people_said = references(trial.examples, as_written=config.references == "written")
    scores = bleu([caption.words for caption in written], people_said)
    relations = measure_relations(trial.module, trial.examples, trial.images)
    figures = score_figures(scores, relations, len({tuple(caption.words) for caption in written}))
    print_scores(scores, relations, trial.title())
    gaze = measure_gaze(trial.module, trial.examples, trial.images)
    if gaze:
        figures |= gaze_figures(gaze)
        print_gaze(gaze, "where it looks at what people name")

    path = Path(config.output or trial.result_file("results"))
    write_json(
        {
            **figures,
            **trial.origin(),
            "references": config.references,
            "decoding": trial.module.decoding._asdict(),
            "captions": {caption.image: " ".join(caption.words) for caption in written},
        },
        path,
    )
    print(f"written to {path}")
    return scores.without_penalty[3]


main = entry_point("evaluate", run)

if __name__ == "__main__":
    main()
