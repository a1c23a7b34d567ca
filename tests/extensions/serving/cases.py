"""The server in the tests of the core."""

MODEL_COMMANDS = {"serve": ["serve", "checkpoint=hostile", "port=0"]}
NOT_RUN = {"showattendtell serve": "runs until Ctrl-C; the tests ask servers of their own"}
