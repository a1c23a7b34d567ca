"""The test results that models are to have, and which of them are there."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from showattendtell.config.compose import beside_a_command, compose
from showattendtell.files import sha256

BOXED = "pointing_game"
"""The figure that a result has where the boxes of things were known."""


def title_of(decoding: int | str) -> str:
    """A table's way of decoding as readers are told of it."""
    return f"beam {decoding}" if isinstance(decoding, int) else decoding


def setting_of(decoding: int | str) -> str:
    """A table's way of decoding as a command is told of it."""
    return f"decoding.beam_size={decoding}" if isinstance(decoding, int) else f"decoding={decoding}"


class Scoring(NamedTuple):
    """Models that write as one, and the test results that they are to have.

    title      what it is called
    folder     that of the results
    models     their checkpoints
    decodings  how the images are captioned, each by a result of its own
    boxed      whether the results are to say how well attention finds things
    """

    title: str
    folder: Path
    models: tuple[Path, ...]
    decodings: tuple[int | str, ...]
    boxed: bool

    @property
    def is_finished(self) -> bool:
        return all(map(self.is_scored, self.decodings))

    @property
    def results(self) -> list[Path]:
        """Those that are there, also of other ways of decoding and of other weights."""
        return sorted(self.folder.glob("results-test-*.json"))

    @property
    def was_scored(self) -> bool:
        """Whether there is any result of these models as they are: they were scored, and so trained to their end."""
        return all(model.is_file() for model in self.models) and any(map(self._is_of_these, self.results))

    def result_file(self, decoding: int | str) -> Path:
        return self.folder / f"results-test-{title_of(decoding).replace(' ', '')}.json"

    def is_scored(self, decoding: int | str) -> bool:
        """Whether there is a result of these models, written in the way that the settings say now.

        A checkpoint that was deleted is taken to be what was scored.
        """
        file = self.result_file(decoding)
        if not file.is_file() or not self._is_of_these(file):
            return False
        result = _read(file, _stamp(file))
        return _is_written_so(result, decoding) and (not self.boxed or BOXED in result)

    def _is_of_these(self, file: Path) -> bool:
        scored = _read(file, _stamp(file))["checkpoint_sha256"]
        hashes = [scored] if isinstance(scored, str) else scored
        return len(hashes) == len(self.models) and all(map(_is_of, self.models, hashes))


def _is_written_so(result: dict[str, Any], decoding: int | str) -> bool:
    """A setting that the result knows nothing of came later, and leaves captions as they were where it is not given."""
    tokenizer, settings = _settings_of(decoding)
    told = result["decoding"]
    return result["tokenizer"] == tokenizer and all(told[name] == settings.get(name) for name in told)


@cache
def _settings_of(decoding: int | str) -> tuple[str, dict[str, Any]]:
    """The tokenizer and the way of decoding that evaluate has now, as it writes them into a result."""
    from showattendtell.config.build import build

    with beside_a_command():
        config, _ = compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])
    return config.tokenizer, json.loads(json.dumps(build(config.decoding).describe()))


def _is_of(checkpoint: Path, sha256: str) -> bool:
    return not checkpoint.is_file() or sha256_of(checkpoint) == sha256


def _stamp(file: Path) -> tuple[int, int]:
    """What tells a file from what stood in its place before."""
    about = file.stat()
    return about.st_mtime_ns, about.st_size


def sha256_of(checkpoint: Path) -> str:
    return _hash(checkpoint, _stamp(checkpoint))


@cache
def _hash(checkpoint: Path, stamp: tuple[int, int]) -> str:
    return sha256(checkpoint)


@cache
def _read(file: Path, stamp: tuple[int, int]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_bytes())
    return content
