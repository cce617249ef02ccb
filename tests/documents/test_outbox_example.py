"""The program of the outbox example that delivers messages: what a page of a few messages does not show."""

import json
import subprocess
import sys
from pathlib import Path

DELIVER = Path(__file__).parents[2] / "examples" / "outbox" / "deliver.py"
COUNT = 20_000
WAIT_S = 60  # it takes less than one; to read the file again for each message takes half an hour


def test_many_messages_that_come_again_are_passed_over(tmp_path):
    """A batch that is not taken within `batch_ms_max` comes again, so one that falls behind never gets further."""
    sent = tmp_path / "sent" / "shop.orders.jsonl"
    sent.parent.mkdir()
    sent.write_text("".join(json.dumps({"id": f"m{n}", "key": "1", "payload": "{}"}) + "\n" for n in range(COUNT)))
    before = sent.read_text()
    lines = [json.dumps({"id": f"m{n}", "topic": "shop.orders", "key": "1", "payload": "{}"}) for n in range(COUNT + 1)]
    subprocess.run(
        [sys.executable, DELIVER], input="\n".join(lines), text=True, cwd=tmp_path, timeout=WAIT_S, check=True
    )
    added = sent.read_text().removeprefix(before)
    assert json.loads(added) == {"id": f"m{COUNT}", "key": "1", "payload": "{}"}
