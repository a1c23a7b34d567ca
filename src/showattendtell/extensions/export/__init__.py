"""Settings of `export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from showattendtell.config.schemas import InferenceAttentionSettings
from showattendtell.settings import PositiveInt, Text


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Settings of `export`.

    Attributes:
        checkpoint: a best.ckpt or last.ckpt of training, a folder written by save_pretrained, a bundled model, or one
            on the hub, as owner/name.
        compare: checkpoints that formats=[web] shows side by side with this one.
        names: of the models on that page; by default the ends of their paths.
        formats: onnx, graphs for onnxruntime and other ONNX runtimes, with a script that runs them; web, a page that
            captions photographs in the browser, for any server of static files.
        precision: type of the large weights of the graphs, which compute in float32; float16 halves the files.
        output: a new folder; export, or export-2, ... next to the checkpoint by default.
        onnxruntime_web: archive of the npm package onnxruntime-web; by default npm fetches it, and the cache keeps it.
        webgpu: let the page of formats=[web] run the encoder with WebGPU in browsers that have it.
        max_length: the longest caption in words, <eos> included.
    """

    checkpoint: Text
    compare: Text | Sequence[Text]
    names: Annotated[Sequence[Text], Field(min_length=1)] | None
    formats: Annotated[Sequence[Literal["onnx", "web"]], Field(min_length=1)]
    precision: Literal["float32", "float16"]
    output: Text | None
    onnxruntime_web: Text | None
    webgpu: bool
    max_length: PositiveInt
    attention: InferenceAttentionSettings
