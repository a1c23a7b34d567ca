"""How much a request may ask for, and how many may wait."""

from typing import NamedTuple

from showattendtell.arguments import PositiveFloat, PositiveInt

MEGA = 1_000_000


class Limits(NamedTuple):
    """What the server takes.

    file_megabytes: of one photograph as a file.
    request_megabytes: of all that is sent in one request, which is kept in memory.
    megapixels: of all photographs of a request, by their headers, before one is decoded.
    photographs: in one request.
    waiting: requests that are received, waited for or worked on at a time; others are told to come again.
    seconds: that a request may take to be sent, and again to be answered.
    """

    file_megabytes: PositiveFloat = 16.0
    request_megabytes: PositiveFloat = 32.0
    megapixels: PositiveFloat = 64.0
    photographs: PositiveInt = 8
    waiting: PositiveInt = 16
    seconds: PositiveFloat = 60.0
