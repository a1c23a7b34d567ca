"""Why a request is not answered: a status of HTTP and one sentence."""

from collections.abc import Mapping


class Refusal(Exception):  # noqa: N818
    """What is wrong with a request, and what to do.

    Args:
        status: 4xx, or 503 where it is enough to come again.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})
