"""What wandb's own reader, `wandb leet inspect`, finds in the file of a run that was kept offline."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def read_wandb(part: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of a run's folder by their type, in order."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(part)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in said.splitlines():
        record = json.loads(line)
        records[record["type"]].append(record[record["type"]])
    return records


def figures_of(records: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of figures, by names that end in no property of a table or histogram."""
    items = (record["item"] for record in records["history"])
    return [{name: value for name, value in item.items() if not name.startswith("_")} for item in items]


def artifact_of(records: dict[str, list[dict[str, Any]]], kind: str) -> list[dict[str, Path]]:
    """The files of each artifact of a kind, by their names in it: where they lie until they are uploaded."""
    return [
        {content["path"]: Path(content["local_path"]) for content in record["manifest"]["contents"]}
        for record in records["artifact"]
        if record["type"] == kind
    ]
