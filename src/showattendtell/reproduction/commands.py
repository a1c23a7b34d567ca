"""The commands of this package, run one after the other as a user would run them."""

import shlex
import sys

from showattendtell.config.subcommands import Subcommands
from showattendtell.errors import UserError


class Commands(Subcommands):
    """Runs commands in turn, as a context. Signals go on to the present one, and then end the program."""

    def __exit__(self, *about: object) -> None:
        super().__exit__(*about)
        if self.came:
            print("\nstopped; the same command goes on from here", file=sys.stderr)

    def run(self, command: str, *settings: str) -> None:
        """Show the command and run it.

        Raises `UserError` where it fails, and SystemExit where this process was told to stop.
        """
        line = f"python -m showattendtell.{shlex.join([command, *settings])}"
        print(f"\n$ {line}", flush=True)
        status = self.status_of(command, *settings)
        if self.came:
            sys.exit(128 + self.came)
        if status:
            raise UserError(f"{command} ended with status {status}; what it said stands above, behind $ {line}")
