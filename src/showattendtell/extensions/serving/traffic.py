"""What the server has answered, in the text format of Prometheus."""

from collections import Counter
from collections.abc import Iterable

TEXT = "text/plain; version=0.0.4"
COUNTED = ("/api/caption", "/api/picture", "/cards")
"""Paths that are counted each; pages and what is not found are counted together."""


class Traffic:
    """Counts requests and captions since the server was started."""

    def __init__(self) -> None:
        self._captions = Counter({False: 0, True: 0})
        self._answers = Counter[tuple[str, int]]()
        self._seconds = dict.fromkeys([*COUNTED, "other"], 0.0)

    def count_answer(self, path: str, status: int, seconds: float) -> None:
        path = path if path in COUNTED else "other"
        self._answers[path, status] += 1
        self._seconds[path] += seconds

    def count_captions(self, unsure: Iterable[bool]) -> None:
        """Count the captions of models, which are unsure or not."""
        self._captions.update(unsure)

    def text(self, taken: int, places: int) -> str:
        """Return the counts; `taken` of the `places` for requests are taken now."""
        seconds = {f'_sum{{path="{path}"}}': time for path, time in self._seconds.items()}
        for path in self._seconds:
            seconds[f'_count{{path="{path}"}}'] = sum(n for (other, _), n in self._answers.items() if other == path)
        answers = {f'{{path="{path}",status="{status}"}}': n for (path, status), n in self._answers.items()}
        captions = {f'{{unsure="{str(unsure).lower()}"}}': n for unsure, n in self._captions.items()}
        lines = []
        for name, kind, meaning, samples in (
            ("requests_total", "counter", "Requests that were answered.", answers),
            ("request_seconds", "summary", "Seconds from a request to the end of its answer.", seconds),
            ("captions_total", "counter", "Captions by all models, and of how many a model was unsure.", captions),
            ("places", "gauge", "Requests that are received, queued or processed at a time.", {"": places}),
            ("places_taken", "gauge", "How many of the places are taken.", {"": taken}),
        ):
            lines += [f"# HELP showattendtell_{name} {meaning}", f"# TYPE showattendtell_{name} {kind}"]
            lines += [f"showattendtell_{name}{label} {value:.9g}" for label, value in samples.items()]
        return "\n".join([*lines, ""])
