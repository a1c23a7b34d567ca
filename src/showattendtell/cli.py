"""`showattendtell COMMAND ...`, the same as `python -m showattendtell.COMMAND ...`."""

import runpy
import sys

from showattendtell.errors import did_you_mean

COMMANDS = {
    "download": "fetch a data set",
    "prepare": "check a data set and store the encoder's grids",
    "features": "show, verify and merge the stored grids",
    "train": "train a captioner",
    "average": "one checkpoint of several, of their mean weights",
    "evaluate": "score a checkpoint",
    "attend": "score where a checkpoint looks",
    "score": "score captions of any origin, and compare them",
    "table": "results beside the paper's",
    "reproduce": "run a whole table of the paper, and write it",
    "sweep_report": "what a search has found",
    "caption": "caption photographs and show where the model looked",
    "page": "show where a checkpoint looks in images of its data set, in one HTML file",
    "serve": "caption photographs in a browser, and for programs",
    "export": "a checkpoint as ONNX, torch.export programs or machine code",
    "demo": "all of it on the embedded data set, in minutes",
}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("usage: showattendtell COMMAND [setting=value ...]\n")
        print("\n".join(f"  {command:<13}{purpose}" for command, purpose in COMMANDS.items()))
        print("\nshowattendtell COMMAND --help says what each takes.")
    elif name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(f"showattendtell.{name}", run_name="__main__", alter_sys=True)
    else:
        print(f"error: there is no command {name}{did_you_mean(name, COMMANDS)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
