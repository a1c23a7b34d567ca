"""The test results that models need, and which of them exist."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from showattendtell.config.compose import beside_a_command, compose
from showattendtell.runtime.files import sha256

BOXED = "pointing_game"
"""The figure that a result has if the data set has ground-truth boxes."""


def title_of(decoding: int | str) -> str:
    """Return the title of a table's decoding."""
    return f"beam {decoding}" if isinstance(decoding, int) else decoding


def setting_of(decoding: int | str) -> str:
    """Return the command-line setting of a table's decoding."""
    return f"decoding.beam_size={decoding}" if isinstance(decoding, int) else f"decoding={decoding}"


class ScoringPlan(NamedTuple):
    """A model or an ensemble, and the test results that it needs.

    title      its name
    folder     of the results
    models     the checkpoints
    decodings  one result for each
    boxed      whether the results need attention scores, which use ground-truth boxes
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
        """Existing results, including those of other decodings and other weights."""
        return sorted(self.folder.glob("results-test-*.json"))

    @property
    def was_scored(self) -> bool:
        """Whether any result belongs to the present weights, which means that training was complete."""
        return all(model.is_file() for model in self.models) and any(map(self._is_of_these, self.results))

    def result_file(self, decoding: int | str) -> Path:
        return self.folder / f"results-test-{title_of(decoding).replace(' ', '')}.json"

    def is_scored(self, decoding: int | str) -> bool:
        """Whether there is a result of these models with the present settings of this decoding.

        A deleted checkpoint is assumed to be the one that was scored.
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
    """Whether a result has the present settings; those that it lacks are newer, and by default change no caption."""
    tokenizer, settings = _settings_of(decoding)
    decoding_used = result["decoding"]
    return result["tokenizer"] == tokenizer and all(decoding_used[name] == settings.get(name) for name in decoding_used)


@cache
def _settings_of(decoding: int | str) -> tuple[str, dict[str, Any]]:
    """Return the present tokenizer and decoding settings of evaluate, in the form of a result file."""
    from showattendtell.config.instantiate import build

    with beside_a_command():
        config, _ = compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])
    return config.tokenizer, json.loads(json.dumps(build(config.decoding).describe()))


def _is_of(checkpoint: Path, sha256: str) -> bool:
    return not checkpoint.is_file() or sha256_of(checkpoint) == sha256


def _stamp(file: Path) -> tuple[int, int]:
    """Return modification time and size of a file, as cache key."""
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
