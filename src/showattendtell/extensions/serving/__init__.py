"""Settings of `serve`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from showattendtell.config.schemas import CaptioningSettings
from showattendtell.settings import Node, PositiveFloat, PositiveInt, Text


@dataclass(frozen=True, kw_only=True)
class ServeSettings(CaptioningSettings):
    """Settings of `serve`.

    Attributes:
        host: the address to bind. 127.0.0.1 accepts connections from this machine only, 0.0.0.0 from any machine.
        port: the port to bind; 0 takes any free port. The address is printed.
        megabytes: maximum size of a request, which is kept in memory.
        megapixels: maximum of all photographs of a request together, checked by their headers before they are decoded.
        photographs: maximum number of photographs in a request.
    """

    host: Text
    port: Annotated[int, Field(ge=0, le=65535)]
    megabytes: PositiveFloat
    megapixels: PositiveFloat
    photographs: PositiveInt
    server: Node
