"""Score caption files of any origin, and compare the scores of several files."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point


@entry_point("score")
def main(config: DictConfig) -> None:
    from collections import ChainMap
    from pathlib import Path

    from showattendtell.data.formats import find_caption_files, read_all
    from showattendtell.inference.matching import describe, in_words, match, split_words, training_captions
    from showattendtell.metrics.bootstrap import compare_with_first, corpus_figures
    from showattendtell.metrics.modular import Diversity, measure
    from showattendtell.visualization.result_files import has_fields, versions, writable, write_json
    from showattendtell.visualization.tables import print_comparison, print_notes, print_scores

    path = writable(Path(config.output), has_fields("scores", "comparisons"))
    named = [find_caption_files(given or []) for given in (config.hypotheses, config.references, config.training)]
    read = read_all(path for paths in named for path in paths)
    hypotheses, references, training = ({path: read[path] for path in paths} for paths in named)
    corpus = in_words(match(hypotheses, references, config.split, config.partial), config.tokenizer)
    learned = split_words(training_captions(training), config.tokenizer) if training else None
    print_notes(corpus.notes)

    panels = {path: measure(words, corpus.references, config.metrics) for path, words in corpus.hypotheses.items()}
    figures, diversity = {}, Diversity(learned)
    for file, panel in panels.items():
        diversity.reset()
        diversity.update(corpus.hypotheses[file])
        varied = {name: figure.item() for name, figure in diversity.compute().items()}
        figures[file] = corpus_figures(panel.measured.values()) | varied
    missing = ChainMap(*(panel.missing for panel in panels.values()))
    print_scores(list(figures.values()), missing, corpus.title())

    first, *others = panels
    systems = [panel.measured for panel in panels.values()]
    comparisons = compare_with_first(systems, len(corpus.images), config.resamples, config.seed)
    for number, comparison in enumerate(comparisons, start=2):
        print_comparison(comparison, f"({number}) less (1), over {config.resamples:,} resamples of the images")

    write_json(
        {
            "scores": {str(path): {**figures[path], "missing": panel.missing} for path, panel in panels.items()},
            "comparisons": [
                {"a": str(first), "b": str(path), **comparison.describe()}
                for path, comparison in zip(others, comparisons, strict=True)
            ],
            "images": len(corpus.images),
            "reference_captions": corpus.num_references,
            "metrics": list(config.metrics),
            **{name: config[name] for name in ("tokenizer", "split", "partial", "resamples", "seed")},
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
