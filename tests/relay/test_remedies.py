"""What has a suspended source go on fits its reason."""

import pytest

from databus.relay import State
from databus.relay._capture_state import Status, remedy_of
from databus.sources import parse_source
from databus.sources.mysql.server import Fault
from databus.sources.mysql.server._resumable import _MEND, Trouble

MYSQL = {"type": "mysql", "hosts": ["db"], "user": "u", "password": "p"}
SQLITE = {"type": "sqlite", "path": "shop.db"}
PURGED = Trouble(Fault.PURGED, "", f"the server has purged it. {_MEND}").error("shop")
RESET = Trouble(Fault.FOREIGN, "", f"the server was reset. {_MEND}").error("shop")


def status(error: str, message: str, state: State = State.SUSPENDED_ON_ERROR) -> Status:
    return Status(state, message, error)


@pytest.mark.parametrize(
    ("source", "found", "remedy"),
    [
        (MYSQL, status(type(PURGED).__name__, str(PURGED)), "position set"),
        (MYSQL, status("PositionPurged", "snapshot the captured tables again"), "position set"),
        (MYSQL, status(type(RESET).__name__, str(RESET)), "position set"),
        (MYSQL, status("SourceChanged", "the database is now another one. Put the former back"), None),
        (MYSQL, status("UnsupportedFeature", "no such DDL; to go on, `databus skip` it and have them read"), "skip"),
        (MYSQL, status("InputError", "Access denied"), "resume"),
        (SQLITE, status("PositionPurged", "stop the relay, move the log's folder away and start it again"), None),
        (SQLITE, status("InputError", "there is no such file"), "resume"),
        (MYSQL, status("ServiceUnavailable", "away", State.ERROR_RETRY), None),
        (MYSQL, status("", "", State.RUNNING), None),
    ],
)
def test_the_remedy_fits_the_reason_and_the_source(source, found, remedy, tmp_path):
    assert remedy_of(found, parse_source(source, "sources.shop", tmp_path)) == remedy
