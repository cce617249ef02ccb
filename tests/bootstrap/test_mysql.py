"""MySQL as the source: a consumer is handed over from the service to the relay, and the server is asked for no row."""

import pytest

from databus.sources.mysql._kernels import load_kernels
from databus.testing.servers import ServerMissing, open_server
from tests.bootstrap.mysql_shop import MysqlShop
from tests.bootstrap.test_service import Copy, follow

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    load_kernels("tests")  # compiled before anybody waits for it
    made = open_server("mysql-8.0", tmp_path_factory.mktemp("mysql"))
    try:
        made.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield made
    made.close()


def asked(server):
    """What the server was asked for since the log was emptied."""
    rows = server.query("SELECT user_host, command_type, argument FROM mysql.general_log")
    return [(str(kind), bytes(text).decode(errors="replace")) for user, kind, text in rows if "admin" not in str(user)]


def test_a_hand_over_asks_the_server_for_no_row(tmp_path, server):
    """Its general log has what the relay asks while nothing happens, and nothing else: no connection, no table."""
    with MysqlShop(tmp_path, server).running() as shop:
        shop.churn(1, 15)
        shop.fill()
        old = Copy()
        follow(shop, old)
        shop.churn(15, 30)
        shop.forget()
        shop.churn(30, 33)
        shop.captured()
        server.run("SET GLOBAL log_output = 'TABLE'", "TRUNCATE mysql.general_log", "SET GLOBAL general_log = ON")
        try:
            new = Copy()
            follow(shop, new)
            follow(shop, old, checkpoint=old.checkpoint)
        finally:
            server.run("SET GLOBAL general_log = OFF")
        questions = asked(server)
        assert server.query("SELECT 1 FROM mysql.general_log WHERE argument LIKE '%%general_log = OFF%%'")
        for copy, kinds in ((new, {"state", None}), (old, {"since", None})):
            assert copy.table("orders") == shop.select("SELECT * FROM orders")
            assert copy.table("stock") == shop.select("SELECT * FROM stock")
            assert copy.kinds == kinds
        assert [each for each in questions if each[0] == "Connect" or "orders" in each[1] or "stock" in each[1]] == []
