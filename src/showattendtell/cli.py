"""The command `showattendtell COMMAND ...`, the same as `python -m showattendtell.COMMAND ...`."""

import runpy
import sys

from showattendtell import __version__
from showattendtell.errors import did_you_mean, quiet_pipe

COMMANDS = {
    "download": "fetch a data set",
    "prepare": "check a data set and store the encoder's grids",
    "features": "show, verify and merge the stored grids",
    "train": "train a captioner",
    "average": "one checkpoint of several, of their mean weights",
    "calibrate": "fit how sure a checkpoint is of its captions",
    "evaluate": "score a checkpoint",
    "score": "score captions of any origin, and compare them",
    "report": "results next to the paper's, or what a search has found",
    "reproduce": "run a whole table of the paper, and write it",
    "caption": "caption photographs and show where the model looked",
    "serve": "caption photographs in a browser, and for programs",
    "export": "a checkpoint as ONNX, torch.export programs or machine code",
    "demo": "all of it on the embedded data set, in minutes",
}

RENAMED_COMMANDS = {
    "attend": "evaluate 'metrics=[attention]'",
    "page": "caption split=test",
    "table": "report runs/",
    "sweep_report": "report study=runs/NAME-study",
}
"""Old name of a command to the call that does the same."""


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        with quiet_pipe():
            print("usage: showattendtell COMMAND [setting=value ...]\n")
            print("\n".join(f"  {command:<13}{purpose}" for command, purpose in COMMANDS.items()))
            print("\nshowattendtell COMMAND --help describes its settings; --debug shows the traceback of an error;")
            print("showattendtell --version prints the version.")
    elif name == "--version":
        print(f"showattendtell {__version__}")
    elif name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(f"showattendtell.{name}", run_name="__main__", alter_sys=True)
    elif name in RENAMED_COMMANDS:
        new = RENAMED_COMMANDS[name]
        print(f"error: {name} was merged into {new.split()[0]}: use showattendtell {new}", file=sys.stderr)
        sys.exit(2)
    else:
        print(f"error: there is no command {name}{did_you_mean(name, COMMANDS)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
