"""The launcher that started this process, and the signals that ask a run to stop."""

import ctypes
import os
import signal
import sys

from showattendtell.errors import UserError

NUM_PROCESSES = {"SLURM_NTASKS": "srun", "WORLD_SIZE": "torchrun", "OMPI_COMM_WORLD_SIZE": "torchrun"}
"""Variables that hold a number of processes, and the launcher that starts so many."""


def is_launched() -> bool:
    """Return whether torchrun, or srun before `adopt_task`, started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def adopt_task() -> None:
    """Set the variables of torchrun in a task of srun.

    A process that neither started works alone, with a note if the environment has a number of processes: SLURM sets
    that of the job also in a batch script and in the shell of salloc.

    Raises:
        UserError: SLURM does not know the number of tasks per machine.
    """
    if is_launched():
        return
    number = os.environ.get("SLURM_STEP_NUM_TASKS", os.environ.get("SLURM_NTASKS", "1"))
    if "SLURM_STEP_ID" not in os.environ or number == "1":
        name = next((name for name in NUM_PROCESSES if os.environ.get(name, "1") != "1"), None)
        if name:
            ignored, launcher = f"{name}={os.environ[name]}", NUM_PROCESSES[name]
            message = f"note: {ignored} is ignored, because {launcher} did not start this process"
            print(f"{message}; for several processes, put {launcher} before the command", file=sys.stderr)
        return
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise UserError(f"SLURM was given --ntasks={number}; give it --nodes and --ntasks-per-node instead")
    from pytorch_lightning.plugins.environments import SLURMEnvironment

    job = os.environ.get("SLURM_JOB_ID", "0")
    os.environ.setdefault("MASTER_ADDR", SLURMEnvironment.resolve_root_node_address(os.environ["SLURM_NODELIST"]))
    os.environ.setdefault("MASTER_PORT", str(15000 + int(job[-4:])))
    os.environ |= {
        "TORCHELASTIC_RUN_ID": job,
        "WORLD_SIZE": number,
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_WORLD_SIZE": os.environ["SLURM_NTASKS_PER_NODE"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "GROUP_RANK": os.environ["SLURM_NODEID"],
    }


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a run to stop: without SIGHUP if it is ignored, as nohup does."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    is_hangup_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return signals if is_hangup_ignored else [*signals, signal.SIGHUP]


def end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent ends, even if the parent is killed (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
