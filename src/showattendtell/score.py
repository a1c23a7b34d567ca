"""Score caption files of any origin, compare several files, and measure metrics by human judgments."""

from typing import Any

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point
from showattendtell.errors import UserError

OUTPUT = "scores.json"


@entry_point("score")
def main(config: DictConfig) -> None:
    if (config.hypotheses is None) == (config.judgments is None):
        raise UserError(
            "give captions, as hypotheses=results.json, or human judgments, as judgments=FILE; not both"
            if config.hypotheses
            else "hypotheses is not set; give it as hypotheses=..., or human judgments as judgments=..."
        )
    if config.clip and not (config.judgments and config.images):
        raise UserError(
            "clip needs judgments=FILE and the folder of the judged images, as images=DIR; evaluate has clip for the "
            "captions of a model"
        )
    if config.hypotheses:
        return _score_captions(config)
    from showattendtell.config.folders import read_option
    from showattendtell.config.instantiate import build

    return build(read_option("measure", "judgments"))(config)


def _score_captions(config: DictConfig) -> None:
    from showattendtell.data.formats import find_caption_files, read_all
    from showattendtell.inference.matching import describe, in_words, match, split_words, training_captions
    from showattendtell.metrics.bootstrap import (
        Intervals,
        as_dicts,
        compare_with_first,
        corpus_scores,
        image_scores,
        intervals,
    )
    from showattendtell.metrics.diversity import diversity
    from showattendtell.metrics.modular import measure
    from showattendtell.metrics.tokenizers import scoring_name
    from showattendtell.runtime.files import new_path
    from showattendtell.visualization.result_files import versions, write_json
    from showattendtell.visualization.tables import describe_intervals, print_comparison, print_notes, print_scores

    tokenizer, path = scoring_name(config.tokenizer), new_path(config.output, OUTPUT)
    named = [find_caption_files(given or []) for given in (config.hypotheses, config.references, config.training)]
    read = read_all(path for paths in named for path in paths)
    hypotheses, references, training = ({path: read[path] for path in paths} for paths in named)
    corpus = in_words(match(hypotheses, references, config.split, config.partial), tokenizer)
    learned = split_words(training_captions(training), tokenizer) if training else None
    print_notes(corpus.notes)

    scores: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    limits: dict[str, Intervals] = {}
    systems, per_image = [], {}
    for file, words in corpus.hypotheses.items():
        panel = measure(words, corpus.references, config.metrics, config.language)
        systems.append(panel.measured)
        figures = corpus_scores(panel.measured.values()) | diversity(words, learned)
        limits[str(file)] = intervals(panel.measured, len(words), config.seed, config.resamples)
        scores[str(file)] = {**figures, "missing": panel.missing}
        per_image[str(file)] = image_scores(corpus.images, panel.measured.values())
        missing = panel.missing | missing
    print_scores(list(scores.values()), missing, corpus.title())
    first, *others = scores
    if not others:
        print_notes(describe_intervals(limits[first], len(corpus.images)))

    comparisons = compare_with_first(systems, len(corpus.images), config.resamples, config.seed)
    for i, comparison in enumerate(comparisons, start=2):
        print_comparison(comparison, f"({i}) minus (1), over {config.resamples:,} resamples of the images")

    path = write_json(
        {
            "scores": scores,
            "per_image": per_image,
            "intervals": limits,
            "comparisons": [
                {"a": first, "b": file, "differences": as_dicts(comparison)}
                for file, comparison in zip(others, comparisons, strict=True)
            ],
            "images": len(corpus.images),
            "reference_captions": corpus.num_references,
            "metrics": list(config.metrics),
            "tokenizer": tokenizer,
            **{name: config[name] for name in ("language", "split", "partial", "resamples", "seed")},
            "hypotheses": describe(hypotheses),
            "references": describe(references),
            "training": describe(training),
            "notes": corpus.notes,
            "versions": versions(),
        },
        path,
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
