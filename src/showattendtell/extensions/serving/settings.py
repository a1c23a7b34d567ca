"""Settings of `serve`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from showattendtell.config.schemas import CaptioningConfig
from showattendtell.settings import Text


@dataclass
class ServeConfig(CaptioningConfig):
    """Settings of `serve`.

    Attributes:
        host: the address to bind. 127.0.0.1 accepts connections from this machine only, 0.0.0.0 from any machine.
        port: the port to bind; 0 takes any free port. The address is printed.
        allowed_hosts: the host names that the server accepts, as [photos.example.org]; by default those of this machine
            if host accepts connections from it only, else any.
    """

    host: Text
    port: Annotated[int, Field(ge=0, le=65535)]
    allowed_hosts: Annotated[Sequence[Text], Field(min_length=1)] | None
