"""Table 1 of Xu et al. 2015."""

from typing import NamedTuple

COLUMNS = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor")


class Published(NamedTuple):
    """A row of it: the model, its figures in the order of `COLUMNS` as they are printed (x 100, BLEU without brevity
    penalty, `-` where the paper has none), and what its footnotes say of it."""

    model: str
    figures: str
    remark: str = ""


TABLE_1 = {
    "flickr8k": (
        Published("Google NIC", "63 41 27 - -", "other split, ensemble"),
        Published("Log Bilinear", "65.6 42.4 27.7 17.7 17.31"),
        Published("Soft-Attention", "67 44.8 29.9 19.5 18.93"),
        Published("Hard-Attention", "67 45.7 31.4 21.3 20.30"),
    ),
    "flickr30k": (
        Published("Google NIC", "66.3 42.3 27.7 18.3 -", "ensemble"),
        Published("Log Bilinear", "60.0 38 25.4 17.1 16.88"),
        Published("Soft-Attention", "66.7 43.4 28.8 19.1 18.49"),
        Published("Hard-Attention", "66.9 43.9 29.6 19.9 18.46"),
    ),
    "coco": (
        Published("CMU/MS Research", "- - - - 20.41", "AlexNet"),
        Published("MS Research", "- - - - 20.71", "AlexNet, other split"),
        Published("BRNN", "64.2 45.1 30.4 20.3 -"),
        Published("Google NIC", "66.6 46.1 32.9 24.6 -", "ensemble"),
        Published("Log Bilinear", "70.8 48.9 34.4 24.3 20.03"),
        Published("Soft-Attention", "70.7 49.2 34.4 24.3 23.90"),
        Published("Hard-Attention", "71.8 50.4 35.7 25.0 23.04"),
    ),
}
"""Its rows by data set."""
