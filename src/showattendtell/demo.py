"""Demo on the embedded data set: train, score, and draw the attention maps."""

import shlex
import subprocess
import sys

from showattendtell import __version__
from showattendtell.config.entry_point import report_errors, take_debug
from showattendtell.errors import UserError
from showattendtell.runtime.files import new_folder

RUN = "runs/demo"


def main() -> None:
    """Print and run each command as a user would."""
    with report_errors():
        arguments = take_debug(sys.argv[1:])
        if {"-h", "--help"} & set(arguments):
            print(f"{__doc__}\n\n  showattendtell demo\n\nIt takes no settings. Its folder is new: {RUN}.")
            return
        if "--version" in arguments:
            print(f"showattendtell {__version__}")
            return
        if arguments:
            name = arguments[0].partition("=")[0]
            raise UserError(f"there is no setting {name}: demo takes none; train, evaluate and caption do")
        with new_folder(None, RUN, advice="run it in another folder") as run:
            _follow("train", f"hydra.run.dir={run}")
            _follow("evaluate", f"checkpoint={run}/best.ckpt")
            _follow(
                "caption", f"checkpoint={run}/best.ckpt", "split=test", "num_images=4", f"output={run}/captions.html"
            )
        print(f"\nOpen {run}/captions.html in a browser to see the captions word by word with their attention maps.")
        print(f"The learning curve is {run}/learning_curve.png.")


def _follow(command: str, *settings: str) -> None:
    print(f"\n$ showattendtell {shlex.join([command, *settings])}", flush=True)
    if status := subprocess.run([sys.executable, "-m", f"showattendtell.{command}", *settings]).returncode:
        sys.exit(status)


if __name__ == "__main__":
    main()
