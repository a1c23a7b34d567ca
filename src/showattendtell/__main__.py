"""`showattendtell COMMAND ...` and `python -m showattendtell COMMAND ...`, which run `showattendtell.COMMAND`."""

import ast
import runpy
import sys
from pathlib import Path

from showattendtell import __version__
from showattendtell.errors import did_you_mean, safe_output

COMMANDS = {
    "prepare": "check a data set and compute its feature cache",
    "train": "train a captioner",
    "average": "average the weights of checkpoints",
    "evaluate": "score a checkpoint",
    "score": "score and compare captions of any model",
    "report": "tables of results",
    "caption": "caption photographs and show where the model looked",
    "demo": "the whole pipeline on a built-in data set, in minutes",
}
for file in sorted(Path(__file__).parent.glob("extensions/*/commands/*.py")):
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    COMMANDS[file.stem] = docstring[:1].lower() + docstring[1:].split("\n")[0].rstrip(".")


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    try:
        with safe_output():
            run(name)
    except OSError as error:  # of standard output; a command reports its own
        print(f"error: {error.strerror}", file=sys.stderr)
        sys.exit(2)


def run(name: str) -> None:
    """Run a command, or print the commands."""
    if name in ("-h", "--help", "help"):
        print("usage: showattendtell COMMAND [setting=value ...]\n")
        print("\n".join(f"  {command:<13}{purpose}" for command, purpose in COMMANDS.items()))
        print("\nshowattendtell COMMAND --help describes its settings; --debug shows the traceback of an error;")
        print("showattendtell --version prints the version.")
    elif name == "--version":
        print(f"showattendtell {__version__}")
    elif name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(f"showattendtell.{name}", run_name="__main__", alter_sys=True)
    else:
        print(f"error: there is no command {name}{did_you_mean(name, COMMANDS)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
