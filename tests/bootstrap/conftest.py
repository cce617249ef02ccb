"""Servers that several files of this folder share."""

import pytest

from databus.sources.mysql._kernels import load_kernels
from databus.testing.servers import ServerMissing, open_server

KINDS = ("mysql-8.0", "mariadb-10.11")


@pytest.fixture(scope="session")
def server_of(tmp_path_factory):
    """A server by its kind, started once."""
    load_kernels("tests")  # compiled before anybody waits for it
    servers = {}

    def of(kind):
        if kind not in servers:
            made = open_server(kind, tmp_path_factory.mktemp(kind))
            try:
                made.start()
            except ServerMissing as missing:
                pytest.skip(str(missing))
            servers[kind] = made
        return servers[kind]

    yield of
    for each in servers.values():
        each.close()


@pytest.fixture(params=KINDS)
def database_server(request, server_of):
    """Each kind in turn."""
    return server_of(request.param)
