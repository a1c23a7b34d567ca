"""Evaluation of trained models on a split: the part that the evaluation commands share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from showattendtell.config.compose import to_plain, with_overrides
from showattendtell.config.instantiate import Config, build, find_source
from showattendtell.config.validation import TARGET, raise_errors, validate
from showattendtell.decoding.decoding import Decoding
from showattendtell.errors import UserError
from showattendtell.inference.checkpoints import CACHE, LoadedModel, find_model, load_models, next_to, weights_file
from showattendtell.inference.matching import MatchedCaptions, in_words
from showattendtell.inference.predictions import Predictor, measure_attention, measure_maps, measure_relations
from showattendtell.metrics.bootstrap import corpus_figures
from showattendtell.metrics.clip_score import Clip
from showattendtell.runtime.files import sha256
from showattendtell.types import Dataset, Example, fingerprint
from showattendtell.visualization.result_files import versions
from showattendtell.visualization.tables import (
    attention_score_figures,
    print_attention_scores,
    print_maps,
    print_notes,
    print_relations,
    relation_figures,
)

SHAPES = "showattendtell.data.shapes.read_shapes"

ATTENTION = "attention"
"""The metric of attention maps, which needs boxes and no captions."""


class EvaluationRun(NamedTuple):
    """Restored models, several of them as an ensemble, and the images of a split as each model takes them.

    hashes: SHA-256 of the files with their weights.
    mirrors: the same models with mirrored images; empty if the decoding does not use them.
    """

    checkpoints: Sequence[str]
    hashes: Sequence[str]
    models: Sequence[LoadedModel]
    writers: Sequence[Predictor]
    mirrors: Sequence[Predictor]
    dataset: Dataset
    split: str

    @property
    def examples(self) -> tuple[Example, ...]:
        return self.dataset.split(self.split)

    def title(self) -> str:
        return f"{self.dataset.name}, {len(self.examples)} images of {self.split}"

    def origin(self) -> dict[str, Any]:
        """Return the provenance that a result file records; values are lists for an ensemble."""
        return {
            "dataset": self.dataset.name,
            "split": self.split,
            "split_sha256": fingerprint(self.examples),
            "images": len(self.examples),
            "checkpoint": self._each(self.checkpoints),
            "checkpoint_sha256": self._each(self.hashes),
            "seed": self._each([model.config.seed for model in self.models]),
            "choices": self._each([model.choices for model in self.models]),
            "config": self._each([to_plain(model.config) for model in self.models]),
            "versions": versions(),
        }

    def _each(self, values: Sequence[Any]) -> Any:
        return values[0] if len(values) == 1 else list(values)

    def result_file(self, kind: str) -> Path:
        """Return `KIND-SPLIT.json` in the first checkpoint's folder; for an ensemble `KIND-SPLIT-ensemble.json`."""
        together = "" if len(self.checkpoints) == 1 else "-ensemble"
        return next_to(self.checkpoints[0], f"{kind}-{self.split}{together}.json")


def draw_into_own_cache(settings: DictConfig, cache: str | None) -> None:
    """Have scenes of `dataset=shapes` that are not drawn yet drawn into the user's own cache. The checkpoint may come
    from a stranger and name any folder."""
    place = settings.dataset.get("root")
    if settings.dataset[TARGET] == SHAPES and not any(Path(place).expanduser().glob("shapes-*")):
        settings.dataset.root = f"{cache or CACHE}/shapes"


def open_evaluation(config: Config, decoding: Decoding) -> EvaluationRun:
    """Open what a command's `checkpoint`, `split`, `dataset`, `attention`, `device` and `cache` name.

    Data set and attention default to those of training, the data set to that of the first checkpoint. Settings that are
    not null override them.
    """
    torch.manual_seed(config.seed)
    checkpoints = [config.checkpoint] if isinstance(config.checkpoint, str) else list(config.checkpoint)
    models = load_models(checkpoints, config.device, decoding, config.attention)
    hashes = [sha256(weights_file(find_model(path))) for path in checkpoints]
    first, *others = [with_overrides(model.config, dataset=config.dataset, cache=config.cache) for model in models]
    raise_errors(validate(first))
    if config.dataset.root is None:
        draw_into_own_cache(first, config.cache)
    dataset = build(first.dataset)
    sources = []
    for model, settings in zip(models, [first, *others], strict=True):
        source, dataset = find_source(settings, dataset, model.module.encoder, config.split)
        sources.append(source)
    examples = dataset.split(config.split)
    pairs = [(model.module, source) for model, source in zip(models, sources, strict=True)]
    writers = [Predictor(module, source(examples)) for module, source in pairs]
    mirrors = [Predictor(module, source(examples, "mirrored")) for module, source in pairs if decoding.mirrored]
    return EvaluationRun(checkpoints, hashes, models, writers, mirrors, dataset, config.split)


class Scores(NamedTuple):
    """The scores of captions by their names in result files, and the reason for each missing metric."""

    figures: dict[str, float]
    missing: dict[str, str]


def score(
    trial: EvaluationRun,
    written: Mapping[str, Sequence[Sequence[str]]],
    people: Mapping[str, list[str]],
    config: Config,
    clip: Clip | None = None,
) -> Scores:
    """Score the best caption of each image against the reference captions, with the metrics and the tokenizer of the
    command. A metric that fails is reported as missing; the others are still computed."""
    from showattendtell.metrics.modular import CLIPScore, Diversity, measure  # torchmetrics takes seconds to import

    said = [captions[0] for captions in written.values()]
    learned = [caption.words for example in trial.dataset.split("train") for caption in example.captions]
    sentences = {Path(trial.checkpoints[0]): [" ".join(words) for words in said]}
    corpus = in_words(MatchedCaptions(list(written), list(people.values()), sentences), config.tokenizer)
    print_notes(corpus.notes)
    [hypotheses] = corpus.hypotheses.values()
    panel = measure(hypotheses, corpus.references, [name for name in config.metrics if name != ATTENTION])
    if ATTENTION in config.metrics and (reason := _lacks_attention(trial)):
        panel.missing[ATTENTION] = reason
    diversity = Diversity(learned)
    diversity.update(said)
    figures = {**corpus_figures(panel.measured.values()), **{name: x.item() for name, x in diversity.compute().items()}}
    if clip:
        clip_score = CLIPScore(clip).to(trial.writers[0].module.device)
        try:
            clip_score.update([" ".join(words) for words in said], [example.path for example in trial.examples])
            figures["clip_score"] = clip_score.compute().item()
        except UserError as fault:
            panel.missing["clip_score"] = str(fault)
    return Scores(figures, panel.missing)


def evaluate_attention(trial: EvaluationRun, with_kinds: bool = False) -> dict[str, Any]:
    """Print and return the scores of attention maps (printed `with_kinds` of objects, too) and of relations; empty for
    an ensemble."""
    if len(trial.writers) > 1:
        return {}
    watched = measure_maps(*trial.writers[0], trial.examples)
    maps = {f"attention_{name}": float(figure.mean) for name, figure in watched.items()}
    print_maps(maps)
    relations = measure_relations(*trial.writers[0], trial.examples)
    print_relations(relations)
    figures = {**maps, **relation_figures(relations)}
    if attention_scores := measure_attention(*trial.writers[0], trial.examples):
        print_attention_scores(attention_scores, "attention at the ground-truth boxes", with_kinds)
        figures |= attention_score_figures(attention_scores)
    return figures


def score_attention(trial: EvaluationRun) -> dict[str, Any]:
    """Print and return the pointing game and attention correctness, also by kind of object.

    Raises `UserError` for a data set without ground-truth boxes, and for an ensemble.
    """
    if reason := _lacks_attention(trial):
        raise UserError(reason)
    attention_scores = measure_attention(*trial.writers[0], trial.examples)
    assert attention_scores
    print_attention_scores(attention_scores, trial.title(), with_kinds=True)
    print_notes(trial.dataset.notes)
    return attention_score_figures(attention_scores)


def _lacks_attention(trial: EvaluationRun) -> str:
    """Return why the attention of the models cannot be scored; empty if it can."""
    if len(trial.writers) > 1:
        return "attention is scored for one model; give a single checkpoint, or leave attention out of metrics"
    if any(caption.phrases for example in trial.examples for caption in example.captions):
        return ""
    return (
        f"the data set {trial.dataset.name} has no ground-truth boxes of what its captions name; give them as "
        "dataset.entities=entities.zip (Flickr30k Entities) or, for COCO, as dataset.instances=instances_val2014.json"
    )
