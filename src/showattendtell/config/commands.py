"""The settings of each command that belong to none of its parts."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from showattendtell.arguments import NonNegativeFloat, NonNegativeInt, PositiveInt, Text


class Download(NamedTuple):
    """
    dataset: what is fetched.
    parts: what is fetched of it, among images, captions and splits (Karpathy's); by default all that the data set has.
    mirror: where the archives may lie besides: the address of a folder, which is asked first, or a folder or archive of
        this machine.
    retries: how often in a row it is asked again, ever more slowly, where nothing new has come.
    """

    dataset: Text
    parts: Annotated[Sequence[Literal["images", "captions", "splits"]], Field(min_length=1)] | None
    mirror: Text | None
    retries: NonNegativeInt


class Train(NamedTuple):
    """
    seed: decides the order of the captions, the first weights and the dropout.
    cache: the folder of the stored grids and of the drawings of dataset=shapes.
    initial_weights: drawn as each layer of this project says, or by the released code's one rule; or a best.ckpt, whose
        weights, words and encoder training begins with.
    selection: what best.ckpt and early stopping go by: BLEU-4 or CIDEr of the validation captions, or -log p of
        people's words.
    brevity_penalty: tell and select by BLEU-4 with the brevity penalty.
    checkpoint_every: minutes between two checkpoints while an epoch lasts, which is what a kill can cost; 0 for one
        after every step. There is one before each validation besides. It is written while training waits.
    resume: true goes on with the newest unfinished run of the same settings, and begins one where there is none; the
        folder of a run goes on with that one, its settings included.
    stages: trainings that follow each other, by name, each with what its command has besides this one's arguments; each
        begins with the best checkpoint of the one before.
    """

    seed: NonNegativeInt
    cache: Text
    initial_weights: Literal["project", "released"] | Text
    selection: Literal["bleu4", "cider", "nll"]
    brevity_penalty: bool
    checkpoint_every: NonNegativeFloat
    resume: bool | Text
    stages: Mapping[str, Sequence[Text]] | None


class EvaluatedData(NamedTuple):
    """
    root: the data set's folder, if it is another than in training.
    skip_unreadable: pass over broken images; as in training by default.
    entities: Flickr30k Entities, a zip or folder, for the boxes that people drew; as in training by default.
    instances: COCO's instances, a file or a list of files, for the boxes of what captions name; as in
        training by default.
    """

    root: Text | None
    skip_unreadable: bool | None
    entities: Text | None
    instances: Text | Sequence[Text] | None


class TestedAttention(NamedTuple):
    """
    test: what hard attention looks at: a sample, the likeliest region, or the expectation; as in training by default.
    """

    test: Literal["sample", "argmax", "expectation"] | None


class Evaluate(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training; or several with one vocabulary, as [a.ckpt,b.ckpt], which write as
        one: p of a word is the mean of theirs.
    split: the images to caption.
    tokenizer: how captions are split into words: plain, as for training; whitespace, cased and with punctuation as they
        were written; or ptb, Stanford's.
    metrics: which of bleu, meteor, rouge_l, cider and spice are computed; one that fails is reported as missing.
    clip: a CLIP model, a folder or a name on the hub, for CLIPScore (needs the package transformers).
    output: the result file; results-SPLIT.json beside the checkpoint by default.
    seed: decides what hard attention draws.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    cache: the folder of the stored grids; the one of training by default.
    """

    checkpoint: Text | Annotated[Sequence[Text], Field(min_length=1)]
    split: Literal["train", "val", "test"]
    tokenizer: Literal["plain", "whitespace", "ptb"]
    metrics: Sequence[Literal["bleu", "meteor", "rouge_l", "cider", "spice"]]
    clip: Text | None
    output: Text | None
    seed: NonNegativeInt
    device: Text
    cache: Text | None


class Average(NamedTuple):
    """
    checkpoint: the best.ckpt or last.ckpt of two trainings or more, as [a.ckpt,b.ckpt]; one that stands there twice
        counts twice.
    output: the new checkpoint.
    """

    checkpoint: Annotated[Sequence[Text], Field(min_length=2)]
    output: Text


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


class Score(NamedTuple):
    """
    hypotheses: a file with a caption for each image, or two or more, as [a.json,b.json] or a quoted pattern such as
        'runs/*/results-test.json'; every further one is compared with the first.
    references: a file with what people say of the images, or several that belong together, as [ref0,ref1] or a quoted
        pattern; by default what result files of evaluate hold themselves.
    split: which split's images, where the references tell splits (Karpathy's JSON, a column split); by default all.
    tokenizer: how sentences are split into words: plain, lower case without punctuation; whitespace, as written;
        or ptb, Stanford's tokenizer as the COCO server has it.
    metrics: what is computed, among bleu, meteor, rouge_l, cider and spice; one that fails is reported as missing.
    partial: score the images that are captioned, where not all are.
    training: a file or files of captions; tells how many captions are none of them.
    resamples: how many times the images are drawn anew to tell how sure a difference is.
    seed: decides what is drawn.
    output: the result file.
    """

    hypotheses: Text | Annotated[Sequence[Text], Field(min_length=1)]
    references: Text | Annotated[Sequence[Text], Field(min_length=1)] | None
    split: Text | None
    tokenizer: Literal["plain", "whitespace", "ptb"]
    metrics: Annotated[Sequence[Literal["bleu", "meteor", "rouge_l", "cider", "spice"]], Field(min_length=1)]
    partial: bool
    training: Text | Annotated[Sequence[Text], Field(min_length=1)] | None
    resamples: PositiveInt
    seed: NonNegativeInt
    output: Text


class Caption(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training, a folder that save_pretrained wrote, a model that comes with the
        package, or one on the hub, as owner/name; or several with one vocabulary, as [a.ckpt,b.ckpt], which write as
        one. The pictures show where the first looked, at the words of the best caption.
    compare: further checkpoints, as b.ckpt or [b.ckpt,c.ckpt]; each writes for itself, and the page shows them side by
        side.
    images: a photograph, a folder of photographs, or a list of both as [a.jpg,b.jpg]; given without images= as well.
    formats: what is written, among png, a picture for each photograph with a panel for each word; gif and webp, the
        same as a moving picture; and html, one page of all photographs that shows a word's map when it is pointed at.
    output: the folder for the pictures and the page, index.html.
    seed: decides what hard attention draws.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    """

    checkpoint: Text | Annotated[Sequence[Text], Field(min_length=1)]
    compare: Text | Sequence[Text]
    images: Text | Annotated[Sequence[Text], Field(min_length=1)]
    formats: Annotated[Sequence[Literal["png", "gif", "webp", "html"]], Field(min_length=1)]
    output: Text
    seed: NonNegativeInt
    device: Text


class Page(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training; or several with one vocabulary, as [a.ckpt,b.ckpt], which write as
        one, with the maps of the first.
    compare: further checkpoints, as b.ckpt or [b.ckpt,c.ckpt]; each writes for itself and is shown beside the first.
    split: whose images are shown.
    number: how many of them, spread over the split; null for all.
    output: the page; page-SPLIT.html beside the checkpoint by default.
    seed: decides what hard attention draws.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    """

    checkpoint: Text | Annotated[Sequence[Text], Field(min_length=1)]
    compare: Text | Sequence[Text]
    split: Literal["train", "val", "test"]
    number: PositiveInt | None
    output: Text | None
    seed: NonNegativeInt
    device: Text


Column = Literal[
    "bleu1",
    "bleu2",
    "bleu3",
    "bleu4",
    "bleu1_with_penalty",
    "bleu2_with_penalty",
    "bleu3_with_penalty",
    "bleu4_with_penalty",
    "meteor",
    "rouge_l",
    "cider",
    "spice",
    "clip_score",
    "pointing_game",
    "attention_correctness",
    "attention_entropy",
    "attention_movement",
    "distinct_captions",
    "training_minutes",
]
"""The figures of result files that can be a column of the table."""


class Features(NamedTuple):
    """
    cache: the folder that training keeps its stores in.
    verify: read every store, and hold it against its checksums.
    merge: the folders of stores that are to be one, made by the same encoder.
    output: the folder of the merged store; training looks for it in cache/features/DATASET/, under the name that a
        store of its encoder has.
    """

    cache: Text
    verify: bool
    merge: Annotated[Sequence[Text], Field(min_length=2)] | None
    output: Text | None


class Table(NamedTuple):
    """
    runs: result files of evaluate, or folders that are searched for results-*.json; given without runs= as well.
    split: whose results are shown.
    columns: the figures shown, by their names in result files; BLEU is without brevity penalty unless the name says so.
    paper: show the rows of the paper's Table 1 for the data sets that there are results on.
    output: a file or a list of files for the table, as .md, .tex (for booktabs), .json or .html.
    """

    runs: Text | Annotated[Sequence[Text], Field(min_length=1)]
    split: Literal["train", "val", "test"]
    columns: Annotated[Sequence[Column], Field(min_length=1)]
    paper: bool
    output: Text | Sequence[Text] | None


class SweepReport(NamedTuple):
    """
    study: the folder of a search, runs/NAME-study; given without study= as well.
    storage: where the study is kept, if it is a database with a password or one that has moved.
    """

    study: Text | Annotated[Sequence[Text], Field(min_length=1, max_length=1)]
    storage: Text | None


class Serve(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training; or several with one vocabulary, as [a.ckpt,b.ckpt], which write as
        one, with the maps of the first.
    compare: further checkpoints that can be chosen, as b.ckpt or [b.ckpt,c.ckpt]; each writes for itself.
    host: the address that is listened on. 127.0.0.1 is reached from this machine alone, 0.0.0.0 from all that reach it.
    port: 0 takes any that is free; the address is printed.
    names: the names that the server answers to, as [photos.example.org]; by default those of this machine itself where
        host is reached from it alone, else any.
    seed: decides what is drawn at random, where a request says no other.
    device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    """

    checkpoint: Text | Annotated[Sequence[Text], Field(min_length=1)]
    compare: Text | Sequence[Text]
    host: Text
    port: Annotated[int, Field(ge=0, le=65535)]
    names: Annotated[Sequence[Text], Field(min_length=1)] | None
    seed: NonNegativeInt
    device: Text


class Export(NamedTuple):
    """
    checkpoint: a best.ckpt or last.ckpt of training, a folder that save_pretrained wrote, a model that comes with the
        package, or one on the hub, as owner/name.
    formats: what is written, among onnx, for onnxruntime and whatever else reads ONNX; torch, programs of torch.export;
        and aoti, machine code by AOTInductor, which takes a C++ compiler and minutes.
    images: photographs that the graphs are checked on: one, a folder, or a list of both; generated pixels by default.
    output: a new folder; export beside the checkpoint by default.
    pixels: what the graphs take: uint8, 0 to 255, or float32, 0 to 1. Either is normalised inside.
    max_length: the longest caption in words, <eos> included.
    """

    checkpoint: Text
    formats: Annotated[Sequence[Literal["onnx", "torch", "aoti"]], Field(min_length=1)]
    images: Text | Annotated[Sequence[Text], Field(min_length=1)] | None
    output: Text | None
    pixels: Literal["uint8", "float32"]
    max_length: PositiveInt
