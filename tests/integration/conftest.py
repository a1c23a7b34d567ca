from command_runs import *  # noqa: F403
