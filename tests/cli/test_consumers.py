"""`databus consumers` against a relay: who is how far, and what an operator moves."""

import json
import threading

import pytest
from typer.testing import CliRunner

from databus.cli._app import app
from databus.cli.consumers import consumers_app
from databus.client import FileCheckpoints
from databus.core import Checkpoint, SourceCheckpoint
from tests.relay.groups.test_groups_http import BERT, Member
from tests.relay.support import Database, order, published, scripted

assert consumers_app  # the verb is there once its file is imported


@pytest.fixture
def shop(tmp_path):
    database = Database(groups=[order(scn) for scn in range(1, 6)])
    with scripted(tmp_path, {"shop": database}, groups={"lease_ms": 2_000}) as relay:
        published(relay, "shop", 5)
        yield relay


def run(relay, *words, code=0):
    found = CliRunner().invoke(app, ["consumers", *words, "--relay", relay.url])
    assert found.exit_code == code or (code and found.exception), (found.output, found.exception)
    return found.output if not code else str(found.exception)


def test_names_are_listed_shown_and_moved_while_members_are_at_work(shop, tmp_path):
    member = Member(shop, start="beginning", partitions=2)
    member.call()
    member.call(holds={}, gives={"0": member.saved("0", 3), "1": member.saved("1", 2)})
    assert "billing  running" in run(shop, "list")
    page = json.loads(run(shop, "show", "billing", "--json"))
    assert [each["lag"]["shop"]["changes"] for each in page["partitions"]] == [2, 3]
    assert "0 of 2" in run(shop, "show", "billing")
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            answer = member.call(wait_ms=50)
            if answer.status == 200 and answer.json["give_up"]:
                kept = {n: each for n, each in member.holds.items() if n not in answer.json["give_up"]}
                member.call(holds=kept)

    working = threading.Thread(target=work)
    working.start()
    try:
        said = run(shop, "reset", "billing", "--to", "4")
        assert "What a target keeps itself was not moved" in said
    finally:
        is_over.set()
        working.join()
    page = json.loads(run(shop, "show", "billing", "--json"))
    assert (page["state"], {each["checkpoint"]["sources"]["shop"]["scn"] for each in page["partitions"]}) == (
        "running",
        {4},
    )


def test_a_name_is_exported_deleted_imported_paused_and_resized(shop, tmp_path):
    member = Member(shop, start={"scn": 2})
    member.call()
    member.call(leave=True)
    exported = tmp_path / "billing.json"
    exported.write_text(run(shop, "export", "billing"))
    run(shop, "delete", "billing")
    assert "no group called 'billing'" in run(shop, "show", "billing", code=2)
    run(shop, "import", "billing", "--from", str(exported))
    assert "paused" in run(shop, "pause", "billing")
    assert "4 partitions" in run(shop, "resize", "billing", "4")
    assert "multiple" in run(shop, "resize", "billing", "6", code=2)
    run(shop, "resume", "billing")
    checkpoint = tmp_path / "place"
    checkpoint.write_text(json.dumps({"v": 1, "sources": {"shop": {"scn": 1, "txid": "t1"}}}))
    run(shop, "reset", "billing", "--to", str(checkpoint))
    other = Member(shop, BERT)
    while not other.places:
        other.call(wait_ms=500)
    assert {each["sources"]["shop"]["scn"] for each in other.places.values()} == {1}


def test_a_reset_takes_the_words_of_tail_and_the_files_of_consumers(shop, tmp_path):
    member = Member(shop, start="beginning")
    member.call()
    waiting = Member(shop, BERT)
    waiting.call()
    assert f"hold nothing, and wait: {BERT}" in run(shop, "show", "billing")
    member.call(leave=True)
    waiting.call(leave=True)

    def stands_at() -> int:
        (partition,) = json.loads(run(shop, "show", "billing", "--json"))["partitions"]
        return int(partition["checkpoint"]["sources"]["shop"]["scn"])

    file = tmp_path / "place"
    store = FileCheckpoints(file)
    assert store.open() is None
    store.save(Checkpoint({"shop": SourceCheckpoint(scn=2, txid="t2")}))
    store.close()
    for to, scn in ((str(file), 2), ("1s", 5), ("beginning", 0), ("2023-11-14T22:13:20.000004Z", 3)):
        run(shop, "reset", "billing", "--to", to)
        assert stands_at() == scn
    for wrong in ("begining", str(tmp_path / "none.json")):
        said = run(shop, "reset", "billing", "--to", wrong, code=2)
        assert f"--to {wrong}: is neither a time" in said
        assert "latest, earliest or beginning" in said
