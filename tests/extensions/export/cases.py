"""Exports in the tests of the core."""

MODEL_COMMANDS = {"export": ["export", "checkpoint=hostile"]}
WRITERS = {"export": ["checkpoint=best.ckpt", "max_length=3"]}
NOT_RUN = {
    r"^python -m http\.server": "runs until Ctrl-C; test_web.py serves pages",
    r"^python captioner/run_onnx\.py": "test_exporting.py runs it in an export of its own",
}
