"""Fixtures of commands for the tests of extensions, whose own helpers are in the folder of each."""

import sys
from pathlib import Path

from command_runs import *  # noqa: F403

sys.path += [str(folder) for folder in Path(__file__).parent.iterdir() if folder.is_dir()]
