"""The test results that models are to have, and which of them are there."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

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

    def result_file(self, decoding: int | str) -> Path:
        return self.folder / f"results-test-{title_of(decoding).replace(' ', '')}.json"

    def is_scored(self, decoding: int | str) -> bool:
        """Whether there is a result of these models; a checkpoint that was deleted is taken to be what was scored."""
        file = self.result_file(decoding)
        if not file.is_file():
            return False
        result = json.loads(file.read_bytes())
        scored = result["checkpoint_sha256"]
        hashes = [scored] if isinstance(scored, str) else scored
        same = len(hashes) == len(self.models) and all(map(_is_of, self.models, hashes))
        return same and (not self.boxed or BOXED in result)


def _is_of(checkpoint: Path, sha256: str) -> bool:
    return not checkpoint.is_file() or _hash(checkpoint, checkpoint.stat().st_mtime_ns) == sha256


@cache
def _hash(checkpoint: Path, changed: int) -> str:
    with checkpoint.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
