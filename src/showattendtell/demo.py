"""The whole way on the embedded data set: train, score, and show where the model looked."""

import json
import shlex
import subprocess
import sys

from showattendtell.config.compose import compose
from showattendtell.config.entry import telling_errors
from showattendtell.errors import UserError

RUN = "runs/demo"
NUM_PICTURES = 4


def main() -> None:
    """Run each command as a user would, and show it."""
    with telling_errors():
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(f"{__doc__}\n\n  python -m showattendtell.demo\n\nIt takes no settings and writes to {RUN}.")
            return
        if sys.argv[1:]:
            name = sys.argv[1].partition("=")[0]
            raise UserError(f"there is no setting {name}: demo takes none; train, evaluate and caption do")
        _follow("train", f"hydra.run.dir={RUN}")
        _follow("evaluate", f"checkpoint={RUN}/best.ckpt")
        _follow("caption", f"checkpoint={RUN}/best.ckpt", f"images={json.dumps(_scenes())}", f"output={RUN}/captions")
    print(f"\nThe pictures are in {RUN}/captions, and in a browser {RUN}/captions/index.html shows them word by word.")
    print(f"The learning curve is {RUN}/learning_curve.png.")


def _follow(command: str, *settings: str) -> None:
    print(f"\n$ python -m showattendtell.{shlex.join([command, *settings])}", flush=True)
    status = subprocess.run([sys.executable, "-m", f"showattendtell.{command}", *settings]).returncode
    if status:
        sys.exit(status)


def _scenes() -> list[str]:
    """Files of the first test images."""
    from showattendtell.config.build import build

    config, _ = compose("train", ["dataset=shapes"])
    return [example.path for example in build(config.dataset).split("test")[:NUM_PICTURES]]


if __name__ == "__main__":
    main()
