"""Confidence in the tests of the core."""

MODEL_COMMANDS = {"calibrate": ["calibrate", "checkpoint=hostile", "output=new.ckpt"]}
WRITERS = {"calibrate": ["checkpoint=best.ckpt", "device=cpu"]}
