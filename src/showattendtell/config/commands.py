"""The settings of each command that belong to none of its parts."""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from showattendtell.arguments import NonNegativeInt, Text


class Train(NamedTuple):
    """
    seed: decides the order of the captions, the first weights and the dropout.
    cache: the folder of the stored grids and of the drawings of dataset=shapes.
    initial_weights: drawn as each layer of this project says, or by the released code's one rule.
    selection: what best.ckpt and early stopping go by: BLEU-4 of the validation captions, or -log p of people's words.
    brevity_penalty: tell and select by BLEU-4 with the brevity penalty.
    """

    seed: NonNegativeInt
    cache: Text
    initial_weights: Literal["project", "released"]
    selection: Literal["bleu4", "nll"]
    brevity_penalty: bool


class EvaluatedData(NamedTuple):
    """
    root: the data set's folder, if it is another than in training.
    skip_unreadable: pass over broken images; as in training by default.
    entities: Flickr30k Entities, a zip or folder, for the boxes that people drew; as in training by default.
    """

    root: Text | None
    skip_unreadable: bool | None
    entities: Text | None


class TestedAttention(NamedTuple):
    """
    test: what hard attention looks at: a sample, the likeliest region, or the expectation; as in training by default.
    """

    test: Literal["sample", "argmax", "expectation"] | None


class Evaluate(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training.
    split: the images to caption.
    references: people's captions as tokens, like the model's own; or as written, cased and with punctuation.
    output: the result file; results-SPLIT.json beside the checkpoint by default.
    seed: decides what hard attention draws.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    cache: the folder of the stored grids; the one of training by default.
    """

    checkpoint: Text
    split: Literal["train", "val", "test"]
    references: Literal["tokens", "written"]
    output: Text | None
    seed: NonNegativeInt
    device: Text
    cache: Text | None


class Attend(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training.
    split: the images whose captions are read.
    output: the result file; attention-SPLIT.json beside the checkpoint by default.
    seed: decides what hard attention draws.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    cache: the folder of the stored grids; the one of training by default.
    """

    checkpoint: Text
    split: Literal["train", "val", "test"]
    output: Text | None
    seed: NonNegativeInt
    device: Text
    cache: Text | None


class Caption(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training.
    images: a photograph, a folder of photographs, or a list of both as [a.jpg,b.jpg].
    output: the folder for the pictures.
    seed: decides what hard attention draws.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    """

    checkpoint: Text
    images: Text | Annotated[Sequence[Text], Field(min_length=1)]
    output: Text
    seed: NonNegativeInt
    device: Text
