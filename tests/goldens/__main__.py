"""Record what the package gives, and compare it exactly, on one machine before and after a change of the code.

    python tests/goldens record FILE [SECTION ...]
    python tests/goldens compare FILE [SECTION ...]

`compare` runs the sections again and prints every difference; its exit status is 1 if there is one.
"""

import json
import os
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "fixtures"))
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["SHOWATTENDTELL_MATMUL"] = "torch"  # by default, the faster library is measured and used

from golden_differences import differences
from golden_sections import SECTIONS, MissingDataError

SHOWN = 10
"""Differences that are printed of a section."""


def main() -> None:
    parser = ArgumentParser("python tests/goldens", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("sections", nargs="*", help=f"default: all of {', '.join(SECTIONS)}")
    given = parser.parse_args()
    recorded = json.loads(given.file.read_text()) if given.mode == "compare" or given.file.exists() else {}
    known = [name for name in SECTIONS if given.mode == "record" or name in recorded]
    different = False
    with tempfile.TemporaryDirectory() as folder:
        for name in given.sections or known:
            started = time.monotonic()
            try:
                measured = SECTIONS[name](Path(folder))
            except MissingDataError as missing:
                print(f"{name}: skipped, {missing}")
                continue
            outcome = "recorded"
            if given.mode == "compare":
                found = list(differences(recorded[name], measured))
                different |= bool(found)
                outcome = f"{len(found)} DIFFERENCES" if found else "equal"
                outcome += "".join(f"\n  {line}" for line in found[:SHOWN])
            recorded[name] = measured
            print(f"{name}: {time.monotonic() - started:.0f} s, {outcome}", flush=True)
    if given.mode == "record":
        rows = (f"{json.dumps(name)}: {json.dumps(recorded[name])}" for name in recorded)
        given.file.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    sys.exit(different)


if __name__ == "__main__":
    main()
