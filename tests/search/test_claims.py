"""Who comes first: pipelines of one name over two databases that begin in the same moments."""

import itertools
import json
from dataclasses import replace

import pytest

from databus.core import CorruptData, ServiceUnavailable, UnsupportedFeature
from databus.flow import Bucket, Here
from databus.pipeline import load_pipeline
from databus.pipeline.running._rebuild import rebuild
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch, write_buckets
from tests.outputs.harnesses import order
from tests.search.support import OUTPUTS, output_of
from tests.search.test_search_accidents import attempt, notes

NAME = "shop/main.orders"


def log_of(uuid, note):
    log = ChangeLog(uuid=uuid).begin()
    log.insert(ORDERS, order(1, note))
    log.begin().insert(ORDERS, order(2, note))
    return log


def project(folder, server):
    path = folder / "databus.yml"
    given = {"type": OUTPUTS[server.kind].product, "from": "shop", "url": server.url}
    path.write_text(json.dumps({"name": "shop", "inputs": {"shop": {"type": "mock"}}, "outputs": {"index": given}}))
    return path


@pytest.fixture
def two(server, tmp_path):
    """Outputs of two pipelines of one name, each with a state of its own."""
    found = [output_of(server, tmp_path / name, buckets=1) for name in ("one", "other")]
    for each in found:
        each.open()
    yield found
    for each in found:
        each.close()


def test_the_second_of_two_pipelines_of_one_name_is_refused_before_it_writes(server, two):
    """The first has not ended its first batch, so that nothing is noted yet of how far it has come."""
    one, other = two
    first, second = log_of("log-1", "first"), log_of("log-2", "second")
    with attempt(one) as writer:
        writer.write(first.batch(0, 1))
        with attempt(other) as late, pytest.raises(ServiceUnavailable, match=r"log-1.*another pipeline of this name"):
            late.write(second.batch(0, 2))
    assert notes(server) == {"1": "first"}
    write_batch(one, first.batch(0, 2))
    assert notes(server) == {"1": "first", "2": "first"}
    at = other.held({NAME: None})[NAME].place
    assert (at.scn, at.txid) == (2, "t2")


def test_a_claim_ends_with_its_index(server, two):
    """As where somebody tries again with another database, and has removed what the first attempt has left."""
    one, other = two
    with attempt(one) as writer:
        writer.write(log_of("log-1", "first").batch(0, 2))
    server.ask("DELETE", "/orders")
    write_batch(other, log_of("log-2", "second").batch(0, 2))
    assert notes(server) == {"1": "second", "2": "second"}


def test_a_relay_of_the_same_history_goes_on_where_another_began(server, two):
    """Its log has another uuid; that the place of the claim is in it was asked when the query began."""
    one, other = two
    with attempt(one) as writer:
        writer.write(log_of("log-1", "first").batch(0, 1))
    bucket = Bucket("shop", "index", "shop", 0, 1, accepted=frozenset(["log-1"]))
    with other.part_writer().open(bucket) as writer:
        writer.write(log_of("log-2", "first").batch(0, 2))
    assert notes(server) == {"1": "first", "2": "first"}


@pytest.mark.parametrize("came", ["nobody", "somebody else"])
def test_an_index_that_is_removed_while_its_first_batch_is_written_is_missed(server, two, came):
    """Nothing is noted yet of how far its table has come; rows that it had were lost, without a word."""
    one, log = two[0], log_of("log-1", "first")
    bucket = Bucket("shop", "index", "shop", 0, 1)
    (written,) = write_buckets(one, log.batch(0, 2), bucket)
    server.ask("DELETE", "/orders")
    if came == "somebody else":
        server.ask("PUT", "/orders/_doc/9", {"note": "mine"})
    with pytest.raises(CorruptData, match=r"orders was removed.*databus rebuild"):
        one.commit(written, Here())


@pytest.mark.parametrize("is_whole", [True, False], ids=["a batch was written", "one was begun"])
def test_an_index_can_be_made_anew_by_a_pipeline_that_has_lost_its_state(server, tmp_path, is_whole):
    """As the errors say that speak of rows from another log."""
    path = project(tmp_path, server)
    before = output_of(server, tmp_path, buckets=1)
    before.open()
    if is_whole:
        write_batch(before, log_of("log-1", "first").batch(0, 2))
    with attempt(before) as writer:
        writer.write(log_of("log-1", "first").batch(0, 2))
    asked = []
    rebuild(load_pipeline(path), "index", ["main.orders"], confirm=lambda tables: asked.append(tables) or True)
    assert asked == [[NAME]]
    assert "error" in server.ask("GET", "/orders")
    write_batch(output_of(server, tmp_path), log_of("log-2", "second").batch(0, 2))
    assert notes(server) == {"1": "second", "2": "second"}


def test_two_pipelines_that_have_claimed_tables_of_each_other_have_a_way_out(server, two, tmp_path):
    """Both are refused; the one for which the output is made anew goes on, and the other one is refused still."""
    tables = (ORDERS, replace(ORDERS, source="main.others"))
    logs = [ChangeLog(uuid=f"log-{number}").begin() for number in (1, 2)]
    for log, table in itertools.product(logs, tables):
        log.insert(table, order(1, log.uuid))
    for output, log, begin in zip(two, logs, (0, 1), strict=True):
        with attempt(output) as writer:
            writer.write(log.batch(begin, begin + 1))
    for output, log in zip(two, logs, strict=True):
        with attempt(output) as writer, pytest.raises(ServiceUnavailable, match="another pipeline of this name"):
            writer.write(log.batch(0, 2))
    path = project(tmp_path, server)
    rebuild(load_pipeline(path), "index", confirm=lambda _: True)
    one, other = (output_of(server, tmp_path / name, buckets=1) for name in ("one", "other"))
    write_batch(one, logs[0].batch(0, 2))
    with attempt(other) as writer, pytest.raises(UnsupportedFeature, match=r"log-1.*databus rebuild"):
        writer.write(logs[1].batch(0, 2))
    for name in ("orders", "others"):
        assert {document["note"] for document in server.documents(name).values()} == {"log-1"}
