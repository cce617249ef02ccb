"""The option `mapping`, changed when there is an index: what the server takes is there, and what it refuses is told."""

from functools import partial

import pytest
import structlog

from databus.core import Checkpoint, InputError
from databus.pipeline.engine._handle import OutputHandle
from databus.testing._staged_writes import write_batch, write_buckets
from tests.feeds import bring
from tests.outputs.harnesses import log_of
from tests.search.support import output_of

pytestmark = pytest.mark.old_servers


def started(server, folder, mapping):
    """A query, as a run starts it after the file was changed, and what it warned of."""
    output = output_of(server, folder, buckets=1, mapping=mapping)
    handle = OutputHandle("index", output, folder / ".databus")
    bring(handle)
    handle.open()
    with structlog.testing.capture_logs() as logs:
        for name in handle.position("shop").marks:  # as `begin` does
            handle.follow_options(name)
    return handle, [log for log in logs if log["log_level"] == "warning"]


def written(server, folder, mapping):
    """An index with a row."""
    log = log_of(1, 2)
    handle, _ = started(server, folder, mapping)
    first = log.batch(0, 1)
    handle.write_direct(first, partial(write_buckets, handle.output, first))
    handle.advance(Checkpoint({"shop": first.end}))
    return log.batch(1, 2)


def field_of(server, name):
    ((_, told),) = server.ask("GET", "/orders/_mapping").items()
    found = told["mappings"]
    return found.get("_doc", found)["properties"][name]


@pytest.mark.parametrize("mapping", [{"note": {"type": "keyword"}}, {"main.orders": {"note": {"type": "keyword"}}}])
def test_a_mapping_that_an_index_cannot_have_is_refused_when_the_query_starts(server, tmp_path, mapping):
    written(server, tmp_path, {})
    with pytest.raises(InputError, match=r"index orders: .*note.*`mapping`.*databus rebuild FILE index main\.orders"):
        started(server, tmp_path, mapping)


def test_a_mapping_that_an_index_cannot_have_is_refused_where_the_ledger_is_lost(server, tmp_path):
    batch = written(server, tmp_path / "a", {})
    handle, _ = started(server, tmp_path / "b", {"note": {"type": "keyword"}})
    with pytest.raises(InputError, match=r"databus rebuild FILE index main\.orders"):
        write_batch(handle.output, batch)


def test_a_mapping_that_an_index_can_have_is_put_there_and_older_documents_are_spoken_of(server, tmp_path):
    written(server, tmp_path, {})
    mapping = {"note": {"type": "text", "fields": {"raw": {"type": "keyword"}}}}
    _, (warning,) = started(server, tmp_path, mapping)
    assert "databus rebuild FILE index main.orders" in warning["event"]
    assert field_of(server, "note")["fields"]["raw"] == {"type": "keyword"}
    _, warnings = started(server, tmp_path, mapping)
    assert warnings == []


def test_a_mapping_that_the_server_writes_in_other_words_is_no_change(server, tmp_path):
    mapping = {"note": {"type": "keyword", "doc_values": True, "index": True}, "absent": {"type": "keyword"}}
    written(server, tmp_path, mapping)
    _, warnings = started(server, tmp_path, mapping)
    assert warnings == []
