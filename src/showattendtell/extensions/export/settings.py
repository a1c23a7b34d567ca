"""Settings of `export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from showattendtell.config.schemas import Split
from showattendtell.settings import PositiveInt, Text, Texts


@dataclass
class ExportConfig:
    """Settings of `export`.

    Attributes:
        checkpoint: a best.ckpt or last.ckpt of training, a folder written by save_pretrained, a bundled model, or one
            on the hub, as owner/name.
        compare: checkpoints that formats=[web] shows side by side with this one.
        names: of the models on that page; by default the ends of their paths.
        formats: output formats: onnx, for onnxruntime and other ONNX runtimes; torch, programs of torch.export; aoti,
            machine code by AOTInductor, which needs a C++ compiler and takes minutes; web, a page that captions
            photographs in the browser, for any server of static files; and wheel, a package for pip that needs numpy,
            Pillow and onnxruntime only.
        package: name of that package and of its command.
        precision: type of the weights of ONNX graphs. float16 halves the files. int8 quarters them, and the activations
            of the encoder are quantized in the ranges that they have on photographs: those of images=, or 100 of the
            validation split of dataset.root=.
        split: a split of the checkpoint's data set on which the ONNX graphs are scored, next to the model itself.
        images: photographs to check the graphs on: a file, a folder, or a list of both; generated pixels by default.
        output: a new folder; export, or export-2, ... next to the checkpoint by default.
        onnxruntime_web: archive of the npm package onnxruntime-web; by default npm fetches it, and the cache keeps it.
        webgpu: let the page of formats=[web] run the encoder with WebGPU in browsers that have it.
        pixels: input type of the graphs: uint8, 0 to 255, or float32, 0 to 1. The graphs normalize either.
        max_length: the longest caption in words, <eos> included.
    """

    checkpoint: Text
    compare: Text | Sequence[Text]
    names: Annotated[Sequence[Text], Field(min_length=1)] | None
    formats: Annotated[Sequence[Literal["onnx", "torch", "aoti", "web", "wheel"]], Field(min_length=1)]
    package: Text | None
    precision: Literal["float32", "float16", "int8"]
    split: Split | None
    images: Texts | None
    output: Text | None
    onnxruntime_web: Text | None
    webgpu: bool
    pixels: Literal["uint8", "float32"]
    max_length: PositiveInt
