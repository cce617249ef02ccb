"""An output `stream` as the tests make it, and what its process has kept."""

import json
import sys

from databus.pipeline import OutputContext
from databus.sinks.stream._output import StreamOutput, StreamOutputConfig
from tests.outputs.harnesses import parsed

ANSWERS = """
import json, sys
with open("kept", "a") as kept:
    for line in sys.stdin:
        if line.startswith('{"_acknowledge":'):
            kept.flush()
            print(json.loads(line)["_acknowledge"], flush=True)
        else:
            kept.write(line)
"""
KEEP = {
    "exit": ["sh", "-c", "cat >> kept"],
    "pipe": ["sh", "-c", "cat >> kept"],
    "answer": [sys.executable, "-c", ANSWERS],
}


def output_of(folder, **options):
    how = options.get("acknowledge", "exit")
    given = {"type": "stream", "from": "shop", "command": KEEP[how], "batch_ms_max": 20_000, **options}
    return StreamOutput(StreamOutputConfig.model_validate(given), OutputContext("shop", "lines", folder))


def kept(folder):
    path = folder / "kept"
    return path.read_text().split("\n")[:-1] if path.exists() else []


class StreamHarness:
    keeps = "changes"

    def __init__(self, folder, **options):
        self.folder = folder
        self.options = options

    def full(self):
        return None

    def make(self):
        return output_of(self.folder, **self.options)

    def read(self, physical, table):
        rows = map(json.loads, kept(self.folder))
        mine = [row for row in rows if row["_source"] == f"{physical}/{table.source}" and "_control" not in row]
        return [parsed(row, table) for row in mine]
