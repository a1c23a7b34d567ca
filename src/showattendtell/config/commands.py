"""The settings of each command that belong to none of its parts."""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from showattendtell.arguments import NonNegativeInt, Text


class Train(NamedTuple):
    """
    seed: decides the order of the captions, the first weights and the dropout.
    cache: the folder of the stored grids and of the drawings of dataset=shapes.
    """

    seed: NonNegativeInt
    cache: Text


class EvaluatedData(NamedTuple):
    """
    root: the data set's folder, if it is another than in training.
    skip_unreadable: pass over broken images; as in training by default.
    """

    root: Text | None
    skip_unreadable: bool | None


class Evaluate(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training.
    split: the images to caption.
    output: the result file; results-SPLIT.json beside the checkpoint by default.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    cache: the folder of the stored grids; the one of training by default.
    """

    checkpoint: Text
    split: Literal["train", "val", "test"]
    output: Text | None
    device: Text
    cache: Text | None


class Caption(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training.
    images: a photograph, a folder of photographs, or a list of both as [a.jpg,b.jpg].
    output: the folder for the pictures.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    """

    checkpoint: Text
    images: Text | Annotated[Sequence[Text], Field(min_length=1)]
    output: Text
    device: Text
