"""Data sets and scores as tables on the screen."""

from rich.console import Console
from rich.table import Table

from showattendtell.metrics.bleu import Bleu
from showattendtell.metrics.gaze import Gaze
from showattendtell.metrics.relations import Relations
from showattendtell.records import Dataset
from showattendtell.text.vocabulary import Vocabulary


def print_dataset(dataset: Dataset, vocabulary: Vocabulary) -> None:
    """Images, captions, lengths and vocabulary coverage of each split, and what the reader passed over."""
    table = Table(
        "split", "images", "captions", "words a caption", "known words", title=dataset.name, title_justify="left"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, split in dataset.splits.items():
        captions = [caption.words for example in split for caption in example.captions]
        mean = sum(map(len, captions)) / max(len(captions), 1)
        known = f"{100 * vocabulary.coverage(captions):.2f} %"
        table.add_row(name, f"{len(split):,}", f"{len(captions):,}", f"{mean:.1f}", known)
    table.caption = f"vocabulary: {len(vocabulary):,} ids"
    Console(highlight=False).print(table)
    print_notes(dataset)


def print_notes(dataset: Dataset) -> None:
    for note in dataset.notes:
        Console(highlight=False).print(f"note: {note}", style="yellow", soft_wrap=True)


def print_scores(bleu: Bleu, relations: Relations, title: str) -> None:
    """BLEU-1 to 4 in percent, as the paper counts it and with the brevity penalty; and the relations."""
    table = Table("", title=title, title_justify="left")
    for n in range(1, 5):
        table.add_column(f"BLEU-{n}", justify="right")
    with_penalty = f"with brevity penalty ({bleu.brevity_penalty:.3f})"
    table.add_row("without brevity penalty (the paper's)", *(f"{100 * score:.1f}" for score in bleu.without_penalty))
    table.add_row(with_penalty, *(f"{100 * score:.1f}" for score in bleu.with_penalty))
    console = Console(highlight=False)
    console.print(table)
    if relations.num_words:
        right = f"{100 * relations.accuracy:.1f} % of {relations.num_words:,}"
        console.print(
            f"relations (left, above, near, ...) that it chooses as people do: {right}; always saying the commonest: "
            f"{100 * relations.commonest:.1f} %\n",
            soft_wrap=True,
        )


def print_gaze(gaze: Gaze, title: str, with_kinds: bool = False) -> None:
    """Pointing game and attention correctness in percent: the model beside maps that know nothing of the image."""
    table = Table("attention", title=title, title_justify="left")
    for column in ("nouns", "pointing game", "correctness"):
        table.add_column(column, justify="right")
    sources = {"model": gaze.model, "uniform": gaze.uniform, "centre prior": gaze.centre}
    kinds = {f"model: {kind}": score for kind, score in gaze.by_kind.items()} if with_kinds else {}
    for name, score in (sources | kinds).items():
        rates = (f"{100 * rate:.1f}" for rate in (score.hit_rate, score.correctness))
        table.add_row(name, f"{score.num_words:,}", *rates, end_section=name == "centre prior")
    Console(highlight=False).print(table)
