"""What the server has answered, in the text format of Prometheus."""

from collections import Counter
from collections.abc import Iterable

TEXT = "text/plain; version=0.0.4"


class Traffic:
    """Counts requests with photographs, and captions, since the server was started."""

    def __init__(self) -> None:
        self._captions = Counter({False: 0, True: 0})
        self._answers, self._seconds = Counter[int](), 0.0

    def count_answer(self, status: int, seconds: float) -> None:
        self._answers[status] += 1
        self._seconds += seconds

    def count_captions(self, unsure: Iterable[bool]) -> None:
        """Count the captions of models, which are unsure or not."""
        self._captions.update(unsure)

    def text(self, taken: int, places: int) -> str:
        """Return the counts; `taken` of the `places` for requests are taken now."""
        answers = {f'{{status="{status}"}}': count for status, count in self._answers.items()}
        captions = {f'{{unsure="{str(unsure).lower()}"}}': count for unsure, count in self._captions.items()}
        seconds = {"_sum": self._seconds, "_count": self._answers.total()}
        lines = []
        for name, kind, meaning, samples in (
            ("requests_total", "counter", "Requests with photographs that were answered.", answers),
            ("request_seconds", "summary", "Seconds from such a request to its answer.", seconds),
            ("captions_total", "counter", "Captions by all models, and of how many a model was unsure.", captions),
            ("places", "gauge", "Requests that are received, queued or processed at a time.", {"": places}),
            ("places_taken", "gauge", "How many of the places are taken.", {"": taken}),
        ):
            lines += [f"# HELP showattendtell_{name} {meaning}", f"# TYPE showattendtell_{name} {kind}"]
            lines += [f"showattendtell_{name}{label} {value:.9g}" for label, value in samples.items()]
        return "\n".join([*lines, ""])
