"""Stands in for SLURM: `sbatch` runs the tasks of a job array on this machine, `scontrol requeue` runs one again."""

import os
import re
import subprocess
import sys
from pathlib import Path

JOB = "4711"

OF_EVERY_TASK = {
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_ID": JOB,
    "SLURM_ARRAY_JOB_ID": JOB,
    "SLURM_JOB_NODELIST": "localhost",
    **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"), "1"),
    **dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), "0"),
}
"""What SLURM puts into the environment of a task that is alone."""


def install(folder: Path) -> Path:
    """The commands, in a folder for PATH."""
    folder.mkdir()
    for name in ("sbatch", "srun", "scontrol", "sacct"):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {folder} {name} "$@"\n')
        command.chmod(0o755)
    return folder


def options(folder: Path) -> dict[str, str]:
    """What sbatch was given."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", (folder / "sbatch.sh").read_text(), re.MULTILINE))


def sbatch(folder: Path, file: str) -> None:
    (folder / "sbatch.sh").write_text(Path(file).read_text())
    print(f"Submitted batch job {JOB}", flush=True)
    first, last = re.split("[-%]", options(folder)["array"])[:2]
    for task in range(int(first), int(last) + 1):
        start(folder, str(task))


def start(folder: Path, task: str, **own: str) -> None:
    every, *exported = options(folder)["export"].split(",")
    assert every == "ALL"
    environment = {**os.environ, **OF_EVERY_TASK, **dict(pair.split("=") for pair in exported)}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # whoever waits for sbatch does not for them
    command = ["bash", folder / "sbatch.sh"]
    subprocess.Popen(command, env={**environment, "SLURM_ARRAY_TASK_ID": task, **own}, **silent)


def srun(folder: Path, unbuffered: str, output: str, out: str, error: str, err: str, *command: str) -> None:
    assert (unbuffered, output, error) == ("--unbuffered", "--output", "--error")
    names = {"%A": JOB, "%a": os.environ["SLURM_ARRAY_TASK_ID"], "%t": "0", "%j": JOB}
    for descriptor, path in ((1, out), (2, err)):
        real = re.sub("%[Aatj]", lambda found: names[found[0]], path)
        Path(real).parent.mkdir(parents=True, exist_ok=True)
        os.dup2(os.open(real, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    (folder / f"process-{names['%a']}").write_text(str(os.getpid()))
    os.execv(command[0], command)


def scontrol(folder: Path, requeue: str, job: str) -> None:
    assert requeue == "requeue"
    with (folder / "requeued").open("a") as file:
        file.write(f"{job}\n")
    start(folder, job.partition("_")[2], SLURM_RESTART_COUNT="1")


def sacct(folder: Path, *arguments: str) -> None:
    """Nothing is known about the jobs: results are waited for."""


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
