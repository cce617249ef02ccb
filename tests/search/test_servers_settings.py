"""What somebody has set on the server: templates, aliases, closed indices, other mappings."""

import pytest

from databus.core import InputError, ServiceUnavailable
from databus.testing._staged_writes import write_batch
from tests.outputs.harnesses import log_of
from tests.search.test_search_accidents import all_of, notes, opened


def mapping_of(server, mapping):
    return {"_doc": mapping} if server.kind.startswith("elastic") else mapping


@pytest.fixture
def template(server):
    """Has the server make the index of `orders` with more in its mapping."""

    def put(mapping):
        body = {"index_patterns": ["orders*"], "mappings": mapping_of(server, mapping)}
        server.ask("PUT", "/_template/own", body)

    yield put
    server.ask("DELETE", "/_template/own")


@pytest.mark.parametrize("on_error", ["halt", "dead_letter"])
def test_a_closed_index_is_waited_for_and_its_rows_are_no_dead_letters(server, tmp_path, on_error):
    log = log_of(1, 2)
    with opened(server, tmp_path, on_error=on_error) as output:
        write_batch(output, log.batch(0, 1))
        server.ask("POST", "/orders/_close")
        with pytest.raises(ServiceUnavailable, match="closed"):
            write_batch(output, log.batch(1, 2))
        assert output.letters.count() == 0
        server.ask("POST", "/orders/_open")
        server.ask("GET", "/_cluster/health/orders?wait_for_status=yellow")
        write_batch(output, log.batch(1, 2))
    assert set(notes(server)) == {"1", "2"}


@pytest.mark.parametrize("source", [{"enabled": False}, {"excludes": ["note"]}, {"includes": ["id"]}])
def test_an_index_that_does_not_keep_all_of_its_documents_is_refused(server, tmp_path, template, source):
    """A truncation with soft deletes, or a renamed column, would write what is left of them in their place."""
    template({"_source": source})
    for _ in range(2):
        with opened(server, tmp_path) as output, pytest.raises(InputError, match=r"orders.*_source"):
            write_batch(output, all_of(log_of(1)))
    assert notes(server) == {}


def test_an_index_by_whose_fields_older_documents_cannot_be_found_is_refused(server, tmp_path):
    """As texts, 10 is below 9: a truncation would leave some documents, and remove others that are newer."""
    mapping = {"properties": {"_commit_version": {"type": "keyword"}}}
    server.ask("PUT", "/orders", {"mappings": mapping_of(server, mapping)})
    with opened(server, tmp_path) as output, pytest.raises(InputError, match=r"orders.*_commit_version.*long"):
        write_batch(output, all_of(log_of(1)))
    assert notes(server) == {}


def test_a_template_that_refuses_fields_of_which_it_does_not_know_changes_nothing(server, tmp_path, template):
    template({"dynamic": "strict"})
    with opened(server, tmp_path) as output:
        write_batch(output, all_of(log_of(1)))
    assert len(notes(server)) == 1


def test_an_alias_of_several_indices_is_refused(server, tmp_path):
    for name in ("one", "other"):
        server.ask("PUT", f"/{name}", {"aliases": {"orders": {}}})
    with opened(server, tmp_path) as output, pytest.raises(InputError, match=r"orders.*one, other"):
        write_batch(output, all_of(log_of(1)))


@pytest.mark.parametrize("alias", [{"filter": {"term": {"_commit_version": 1}}}, {"routing": "one"}])
def test_an_alias_by_which_documents_are_passed_over_is_refused(server, tmp_path, alias):
    """A truncation by a filtered alias left rows; with a routing, they went to other shards when that was changed."""
    server.ask("PUT", "/one", {"aliases": {"orders": alias}})
    for _ in range(2):
        with opened(server, tmp_path) as output, pytest.raises(InputError, match=r"orders.*alias.*(filter|routing)"):
            write_batch(output, all_of(log_of(1)))
    assert server.documents("one") == {}


def test_documents_of_somebody_else_are_seen_before_searches_find_them(server, tmp_path):
    server.ask("PUT", "/orders", {"settings": {"refresh_interval": "-1"}})
    server.ask("PUT", "/orders/_doc/mine", {"note": "mine"})
    with opened(server, tmp_path) as output, pytest.raises(InputError, match="has not written"):
        write_batch(output, all_of(log_of(1)))
    assert notes(server) == {"mine": "mine"}


def test_rows_go_by_an_alias_into_its_one_index(server, tmp_path):
    server.ask("PUT", "/one", {"aliases": {"orders": {}}})
    log = log_of(1, 2)
    for begin in (0, 1):
        with opened(server, tmp_path) as output:
            write_batch(output, log.batch(begin, begin + 1))
    assert set(server.documents("one")) == {"1", "2"}


def test_an_index_that_is_never_refreshed_does_not_answer_and_the_error_says_why(server, tmp_path):
    settings = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}
    options = {"settings": settings, "refresh": "wait", "buckets": 1, "request_ms_max": 1_000, "retry_ms_max": 0}
    with opened(server, tmp_path, **options) as output, pytest.raises(ServiceUnavailable, match="refresh_interval has"):
        write_batch(output, all_of(log_of(1)))
