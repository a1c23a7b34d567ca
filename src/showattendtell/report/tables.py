"""Data sets and scores as tables on the screen."""

from rich.console import Console
from rich.table import Table

from showattendtell.metrics.bleu import Bleu
from showattendtell.metrics.pointing import Pointing
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
    console = Console(highlight=False)
    console.print(table)
    for note in dataset.notes:
        console.print(f"note: {note}", style="yellow", soft_wrap=True)


def print_scores(bleu: Bleu, pointing: Pointing | None, title: str) -> None:
    """BLEU-1 to 4 in percent, as the paper counts it and with the brevity penalty; then the pointing game."""
    table = Table("", title=title, title_justify="left")
    for n in range(1, 5):
        table.add_column(f"BLEU-{n}", justify="right")
    with_penalty = f"with brevity penalty ({bleu.brevity_penalty:.3f})"
    table.add_row("without brevity penalty (the paper's)", *(f"{100 * score:.1f}" for score in bleu.without_penalty))
    table.add_row(with_penalty, *(f"{100 * score:.1f}" for score in bleu.with_penalty))
    console = Console(highlight=False)
    console.print(table)
    if pointing:
        hits = f"{100 * pointing.hit_rate:.1f} % of {pointing.num_words:,} nouns"
        console.print(f"pointing game: attention peaks on what the noun names for {hits}")
