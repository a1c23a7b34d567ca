"""What a figure was measured on."""

import platform
from datetime import date

import torch


def describe_machine(threads: int | None = None) -> str:
    """The date, the processor or the graphics card, the number of threads (torch's own by default) and the release of
    torch."""
    processor = platform.processor() or platform.machine()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor
    number = threads or torch.get_num_threads()
    return f"{date.today()}, {device}, {number} thread{'s' * (number > 1)}, torch {torch.__version__}"
