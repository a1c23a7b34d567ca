"""What a user can mend, whoever found it, as a sentence."""

from hydra.errors import HydraException

from showattendtell.errors import UserError

FAULTS = (UserError, HydraException, OSError)
"""What is told without a traceback."""


def sentence(fault: Exception) -> str:
    """What is wrong, and what to do; of any other fault its kind and first line."""
    lines = str(fault).strip().splitlines() or [""]
    if isinstance(fault, UserError):
        return str(fault)
    if isinstance(fault, HydraException):
        return lines[0]
    if isinstance(fault, OSError):
        where = f"{fault.filename}: " if fault.filename else ""
        return f"{where}{fault.strerror or fault}; is there room, and may it be written?"
    return f"{type(fault).__name__}: {lines[0]}"
