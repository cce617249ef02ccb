"""Logs that real servers wrote, once a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from databus.testing.servers import ServerMissing, open_server
from tests.mysql.binlog.twin import Transaction, Twin
from tests.mysql.binlog.workload import CAPTURED, files_of, scheme_of, write_history


@dataclass
class Log:
    kind: str
    scheme: Any
    files: dict[str, bytes]
    transactions: list[Transaction]
    executed: str


@pytest.fixture(scope="session")
def log_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Log]:
    """The log of a server of this kind, with or without GTIDs, and what the twin reads in it."""
    logs: dict[tuple[str, bool], Log] = {}

    def of_kind(kind: str, gtid: bool) -> Log:
        if (kind, gtid) not in logs:
            folder = tmp_path_factory.mktemp(kind)
            try:
                with open_server(kind, folder, gtid=gtid) as server:
                    write_history(server)
                    files = files_of(server, folder)
                    executed = server.gtids()
            except ServerMissing as missing:
                pytest.skip(f"{kind}: {missing}")
            logs[kind, gtid] = Log(kind, scheme_of(kind, gtid=gtid), files, Twin(CAPTURED).read(files), executed)
        return logs[kind, gtid]

    return of_kind


@pytest.fixture(params=[True, False], ids=["gtid", "no-gtid"])
def log(kind: str, request: pytest.FixtureRequest, log_of: Callable[[str, bool], Log]) -> Log:
    """Each kind of server's log, with and without GTIDs."""
    return log_of(kind, request.param)
