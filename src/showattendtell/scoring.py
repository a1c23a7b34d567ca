"""Trained models before the images that they are scored on: what the commands that score share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf

from showattendtell.checkpoint import Restored, restore_together
from showattendtell.config.build import build, find_source, settled
from showattendtell.config.check import find_faults, raise_all
from showattendtell.corpus import Corpus, in_words
from showattendtell.decode.decoding import Decoding
from showattendtell.errors import UserError
from showattendtell.evaluation import Writer, measure_gaze, measure_maps, measure_relations
from showattendtell.files import sha256
from showattendtell.likeness import Clip, measure_likeness
from showattendtell.metrics.diversity import diversity
from showattendtell.metrics.measured import corpus_figures
from showattendtell.metrics.panel import measure
from showattendtell.portable import beside, find_model, weights_file
from showattendtell.records import Dataset, Example, fingerprint
from showattendtell.report.results import gaze_figures, relation_figures, versions
from showattendtell.report.tables import print_gaze, print_maps, print_notes, print_relations


class Trial(NamedTuple):
    """Restored models that write together, and the images of a split of a data set as each of them takes them.

    hashes: SHA-256 of the files with their weights.
    mirrors: the same models before the mirror images, where these are read as well.
    """

    checkpoints: Sequence[str]
    hashes: Sequence[str]
    models: Sequence[Restored]
    writers: Sequence[Writer]
    mirrors: Sequence[Writer]
    dataset: Dataset
    split: str

    @property
    def examples(self) -> tuple[Example, ...]:
        return self.dataset.split(self.split)

    def title(self) -> str:
        return f"{self.dataset.name}, {len(self.examples)} images of {self.split}"

    def origin(self) -> dict[str, Any]:
        """What a result file says of where its figures come from; lists where several models wrote together."""
        return {
            "dataset": self.dataset.name,
            "split": self.split,
            "split_sha256": fingerprint(self.examples),
            "images": len(self.examples),
            "checkpoint": self._each(self.checkpoints),
            "checkpoint_sha256": self._each(self.hashes),
            "seed": self._each([model.config.seed for model in self.models]),
            "choices": self._each([model.choices for model in self.models]),
            "config": self._each([OmegaConf.to_container(model.config, resolve=True) for model in self.models]),
            "versions": versions(),
        }

    def _each(self, values: Sequence[Any]) -> Any:
        return values[0] if len(values) == 1 else list(values)

    def result_file(self, kind: str) -> Path:
        """`KIND-SPLIT.json` beside the checkpoint; of several models beside the first, `KIND-SPLIT-ensemble.json`."""
        together = "" if len(self.checkpoints) == 1 else "-ensemble"
        return beside(self.checkpoints[0], f"{kind}-{self.split}{together}.json")


def open_trial(config: DictConfig, decoding: Decoding) -> Trial:
    """What a command's `checkpoint`, `split`, `dataset`, `attention`, `device` and `cache` name.

    Data set and attention are those of training, the data set that of the first checkpoint, but for their settings that
    are not null.
    """
    torch.manual_seed(config.seed)
    checkpoints = [config.checkpoint] if isinstance(config.checkpoint, str) else list(config.checkpoint)
    models = restore_together(checkpoints, config.device, decoding, config.attention)
    hashes = [sha256(weights_file(find_model(path))) for path in checkpoints]
    first, *others = [settled(model.config, dataset=config.dataset, cache=config.cache) for model in models]
    raise_all(find_faults(first))
    dataset = build(first.dataset)
    sources = []
    for model, settings in zip(models, [first, *others], strict=True):
        source, dataset = find_source(settings, dataset, model.module.encoder, config.split)
        sources.append(source)
    examples = dataset.split(config.split)
    pairs = [(model.module, source) for model, source in zip(models, sources, strict=True)]
    writers = [Writer(module, source(examples)) for module, source in pairs]
    mirrors = [Writer(module, source(examples, "mirrored")) for module, source in pairs if decoding.mirrored]
    return Trial(checkpoints, hashes, models, writers, mirrors, dataset, config.split)


class Scores(NamedTuple):
    """The figures of captions under the names that result files give them, and why others are missing."""

    figures: dict[str, float]
    missing: dict[str, str]


def score(
    trial: Trial,
    written: Mapping[str, Sequence[Sequence[str]]],
    people: Mapping[str, list[str]],
    config: DictConfig,
    clip: Clip | None = None,
) -> Scores:
    """The first of the captions of each image against what people say of it, by the metrics and in the words of the
    tokenizer that the command names.

    A metric that fails is missing, and the others stand.
    """
    said = [captions[0] for captions in written.values()]
    learned = [caption.words for example in trial.dataset.split("train") for caption in example.captions]
    sentences = {Path(trial.checkpoints[0]): [" ".join(words) for words in said]}
    corpus = in_words(Corpus(list(written), list(people.values()), sentences), config.tokenizer)
    print_notes(corpus.notes)
    [hypotheses] = corpus.hypotheses.values()
    panel = measure(hypotheses, corpus.references, config.metrics)
    figures = {**corpus_figures(panel.measured.values()), **diversity(said, learned)}
    if clip:
        paths, [captions] = [example.path for example in trial.examples], sentences.values()
        try:
            figures |= corpus_figures([measure_likeness(captions, paths, clip, trial.writers[0].module.device)])
        except UserError as fault:
            panel.missing["clip_score"] = str(fault)
    return Scores(figures, panel.missing)


def look(trial: Trial) -> dict[str, Any]:
    """Tell and give the figures of attention and of relations; of several models none, since they look each its way."""
    if len(trial.writers) > 1:
        return {}
    watched = measure_maps(*trial.writers[0], trial.examples)
    maps = {f"attention_{name}": float(figure.mean) for name, figure in watched.items()}
    print_maps(maps)
    relations = measure_relations(*trial.writers[0], trial.examples)
    print_relations(relations)
    gaze = measure_gaze(*trial.writers[0], trial.examples)
    if not gaze:
        return {**maps, **relation_figures(relations)}
    print_gaze(gaze, "where it looks at what people name")
    return {**maps, **relation_figures(relations), **gaze_figures(gaze)}
