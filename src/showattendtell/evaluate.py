"""Score a checkpoint, or an ensemble of several, on a split of their data set."""

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process

if TYPE_CHECKING:
    from pathlib import Path

    from showattendtell.inference.evaluator import Captions, EvaluationRun, RunMetric
    from showattendtell.metrics.clip_score import Clip


@entry_point("evaluate")
def main(config: DictConfig) -> float:
    """Return the score of `main_score`, or for `metrics=[attention]` attention correctness, in percent; the mean over
    the languages of a model of several."""
    from statistics import mean

    from showattendtell.config.compose import with_overrides
    from showattendtell.errors import UserError
    from showattendtell.inference.loading import languages_of_model

    languages = languages_of_model(config.checkpoint) if config.language is None else []
    if config.output and languages:
        raise UserError(
            f"output is one file, and the model writes {', '.join(languages)}; choose one with language=..."
        )
    return mean(_evaluate(with_overrides(config, language=language)) for language in languages or [config.language])


def _evaluate(config: DictConfig) -> float:
    """Evaluate in one language, and return what `main` does."""
    from showattendtell.config.instantiate import build
    from showattendtell.inference.evaluator import open_evaluation, run_metrics, score_attention_maps
    from showattendtell.inference.predictions import generate_captions
    from showattendtell.metrics.clip_score import load_clip
    from showattendtell.runtime.distributed import decide_on_first, process_group, rank
    from showattendtell.runtime.files import new_path
    from showattendtell.visualization.result_files import write_json

    clip = load_clip(config.clip) if config.clip else None
    metrics = run_metrics(config.metrics)
    without_captions = list(config.metrics) == ["attention"]
    with process_group():
        run = open_evaluation(config, build(config.decoding))
        for metric in metrics:
            metric.check(run)
        if config.baselines and not without_captions:
            run.dataset.split("train")  # raises before captions are generated
        kind = "attention" if without_captions else "results"
        path = decide_on_first(lambda: new_path(config.output, run.result_file(kind)))
        written = {}
        if not without_captions:
            fused = run.models[0].language_models
            written = generate_captions(run.predictors, run.examples, config.seed, run.mirrors, fused)
        if rank():
            return 0.0
    if not without_captions:
        return _score_captions(run, written, config, metrics, clip, path)
    figures = score_attention_maps(run)
    print(f"written to {write_json({**figures, **run.origin()}, path)}")
    return float(figures["attention_correctness"])


def _score_captions(
    run: "EvaluationRun",
    written: "Captions",
    config: DictConfig,
    metrics: Sequence["RunMetric"],
    clip: "Clip | None",
    path: "Path",
) -> float:
    """Print and write the scores of captions and of what `metrics` and `baselines` add. Return that of `main_score`.

    Args:
        written: captions of each image in words, best first.
    """
    from showattendtell.config.folders import read_option
    from showattendtell.config.instantiate import build
    from showattendtell.inference.evaluator import evaluate_attention, score
    from showattendtell.inference.loading import find_model
    from showattendtell.inference.predictions import reference_sentences
    from showattendtell.visualization.comparison import BASELINES, find_unbeaten
    from showattendtell.visualization.result_files import time_figures, write_json
    from showattendtell.visualization.tables import describe_intervals, print_notes, print_scores

    references = reference_sentences(run.examples)
    scores = score(run, written, references, config, clip)
    figures, missing = _measure([metric for metric in metrics if metric.labels], run, written, config.seed)
    baselines, title = {}, run.title()
    if config.baselines:
        score_baselines = build(read_option("measure", "baselines"))
        baselines = score_baselines(run, written, list(references.values()), config)
        names = ["the model", *(BASELINES[name] for name in baselines)]
        title = "\n".join([title, *(f"({i}) {name}" for i, name in enumerate(names, start=1))])
    labels = {name: label for metric in metrics for name, label in metric.labels.items()}
    print_scores([scores.figures | figures, *baselines.values()], {**scores.missing, **missing}, title, labels)
    print_notes(describe_intervals(scores.intervals, len(written)))
    notes = [f"the model {error}" for error in find_unbeaten(scores.figures, baselines)]
    print_notes(notes)
    attention = evaluate_attention(run, with_kinds="attention" in config.metrics)
    # those that print tables of their own take longer
    others, missing_others = _measure([metric for metric in metrics if not metric.labels], run, written, config.seed)
    path = write_json(
        {
            **scores.figures,
            **attention,
            **others,
            **figures,
            "missing": {**scores.missing, **missing, **missing_others},
            **({"baselines": baselines, "notes": notes} if baselines else {}),
            **(time_figures(find_model(config.checkpoint)) if isinstance(config.checkpoint, str) else {}),
            **run.origin(),
            "tokenizer": run.scoring_tokenizer(config.get("tokenizer")),
            "decoding": run.predictors[0].module.decoding.describe(),
            "captions": {image: run.sentence(captions[0]) for image, captions in written.items()},
            "references": references,
            "per_image": scores.per_image,
            "intervals": scores.intervals,
        },
        path,
    )
    print(f"written to {path}")
    return main_score(config.metrics, scores.figures)


def _measure(
    metrics: Iterable["RunMetric"], run: "EvaluationRun", written: "Captions", seed: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the figures of metrics, and why some are missing."""
    figures, missing = dict[str, Any](), dict[str, str]()
    for metric in metrics:
        measured = metric.measure(run, written, seed)
        figures |= measured.figures
        missing |= measured.missing
    return figures, missing


def main_score(metrics: Sequence[str], scores: Mapping[str, float]) -> float:
    """Return BLEU-4 without brevity penalty, or without it the first score that is named in `metrics`; nan without any.

    A sweep shows this score for each run.
    """
    return next((scores[name] for name in ("bleu4", *metrics) if name in scores), nan)


if __name__ == "__main__":
    main()
    exit_process()  # a process of torchrun can abort if it frees torch's threads
