"""One OpenSearch and one Elasticsearch for all tests of this folder, each with nothing in it when a test begins."""

import pytest

from databus.testing.servers import SEARCH_KINDS, ServerMissing, open_search_server


@pytest.fixture(scope="session")
def search_servers(tmp_path_factory):
    started = {}

    def get(kind):
        if kind not in started:
            server = open_search_server(kind, tmp_path_factory.mktemp(kind))
            try:
                server.start()
            except ServerMissing as missing:
                pytest.skip(str(missing))
            started[kind] = server
        return started[kind]

    yield get
    for server in started.values():
        server.close()


@pytest.fixture(params=SEARCH_KINDS)
def server(request, search_servers):
    found = search_servers(request.param)
    found.ask("DELETE", "/_all")
    return found
