"""Print the number of words of the caption of each photograph: mylab-lengths CHECKPOINT PHOTOGRAPH..."""

import argparse

from showattendtell import load
from showattendtell.config.entry_point import report_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("photograph", nargs="+")
    arguments = parser.parse_args()
    with report_errors():  # an error that users can fix as one sentence, with exit status 2
        captioner = load(arguments.checkpoint)
        for output in captioner(arguments.photograph):
            print(len(output.words), output.caption)


if __name__ == "__main__":
    main()
