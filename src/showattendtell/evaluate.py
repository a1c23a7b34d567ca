"""Scores a checkpoint, or several that write as one, on a split of their data set."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point


def run(config: DictConfig) -> float:
    """BLEU-4 without brevity penalty, in percent."""
    from pathlib import Path

    from showattendtell.config.build import build
    from showattendtell.evaluation import people_said, write_captions
    from showattendtell.likeness import load_clip
    from showattendtell.portable import find_model
    from showattendtell.processes import agree, rank, together
    from showattendtell.report.results import time_figures, writable, write_json
    from showattendtell.report.tables import print_scores
    from showattendtell.scoring import look, open_trial, score

    clip = load_clip(config.clip) if config.clip else None
    with together():
        trial = open_trial(config, build(config.decoding))
        path = agree(lambda: writable(Path(config.output or trial.result_file("results"))))
        written = write_captions(trial.writers, trial.examples, config.seed, trial.mirrors)
        if rank():
            return 0.0
    people = people_said(trial.examples)
    scores = score(trial, written, people, config, clip)
    print_scores(scores.figures, scores.missing, trial.title())
    seen = look(trial)

    write_json(
        {
            **scores.figures,
            **seen,
            "missing": scores.missing,
            **(time_figures(find_model(config.checkpoint)) if isinstance(config.checkpoint, str) else {}),
            **trial.origin(),
            "tokenizer": config.tokenizer,
            "decoding": trial.writers[0].module.decoding.describe(),
            "captions": {image: " ".join(captions[0]) for image, captions in written.items()},
            "references": people,
        },
        path,
    )
    print(f"written to {path}")
    return scores.figures.get("bleu4", 0.0)


main = entry_point("evaluate", run)

if __name__ == "__main__":
    main()
