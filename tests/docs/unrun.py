"""Documented commands that no test runs as they stand, each with the reason; all of the package's own are still held
against its settings."""

import re

REASONS = {
    r"^make ": "takes minutes, or is what runs the tests",
    r"^python -m benchmarks": "takes minutes, and measures",
    r"^(source|pip install|export) ": "changes the shell or what is installed",
    r"^python docs/wandb_report\.py": "needs an account; tests/test_wandb_report.py builds the report",
    r"showattendtell\.reproduce ": "takes hours; tests/whole_run/test_reproduce.py runs a small table",
    r"trainer=ddp(?!.*accelerator=cpu)": "needs several GPUs; tests/whole_run/test_launching.py trains on processors",
    r"^python captioner/run_onnx\.py": "tests/whole_run/test_exporting.py runs it in an export of its own",
    r"^torchrun |^srun ": "needs a cluster; tests/whole_run/test_processes.py starts processes as they do",
    r"dataset=flickr8k(?!.*encoder=)": "fetches the weights of VGG-19; tests/test_hub.py fetches some from a mirror",
    r"hydra/launcher=submitit_slurm": "needs SLURM; tests/whole_run/test_launchers.py pretends to be one",
    r"hydra/launcher=ray|^ray start": "needs a cluster or a GPU; tests/whole_run/test_launchers.py has its own Ray",
    r"storage=postgresql://|storage=/shared/": "needs a server; tests/whole_run/test_study.py has one of its own",
    r"showattendtell\.serve|^curl ": "goes on until Ctrl-C; tests/serving asks servers of its own",
    r"aoti": "compiles for minutes; tests/whole_run/test_exporting.py does",
    r"initial_weights=runs/(paper-|halfway)": "begins with hours; tests/whole_run/test_stages.py has it small",
    r"experiment=(staged|scst)": "several trainings; tests/whole_run/test_stages.py has them small",
}


def reason(line: str) -> str:
    """Why a line is not run; empty where nothing keeps it from being."""
    return next((reason for pattern, reason in REASONS.items() if re.search(pattern, line)), "")
