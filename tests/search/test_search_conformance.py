"""Indices of both products pass the suite that every output passes."""

import pytest

from databus.testing import OUTPUT_CHECKS
from tests.search.support import SearchHarness

BOTH = ("check_key_changes", "check_snapshots", "check_truncate_and_drop", "check_added_columns", "check_values")
"""Of Elasticsearch the others, in which it is asked nothing else, are a matter of the long campaigns."""


def cases():
    for check in OUTPUT_CHECKS:
        yield pytest.param("opensearch-2.19", check, id=f"opensearch-{check.__name__}")
        marks = [] if check.__name__ in BOTH else [pytest.mark.soak]
        yield pytest.param("elasticsearch-6.8", check, id=f"elasticsearch-{check.__name__}", marks=marks)


@pytest.mark.parametrize(("kind", "check"), list(cases()))
def test_an_index_conforms(search_servers, kind, check, tmp_path):
    server = search_servers(kind)
    server.ask("DELETE", "/_all")
    check(SearchHarness(server, tmp_path))
