"""REPAIR takes damaged rows away, and the log has no word of it but the statement."""

import pytest

from databus.testing.servers import Server
from tests.mysql.following import create


@pytest.mark.parametrize("kind", ["mariadb-10.11", "mysql-8.0"])
def test_a_mirror_holds_what_a_repair_has_left(server: Server, database: str, follow) -> None:
    create(server, database)
    tables = {"t": "", "u": ""}
    if server.flavor == "mariadb":
        tables["p"] = "PARTITION BY HASH (id) PARTITIONS 1"  # MySQL has none but InnoDB's
    rows = ", ".join(f"({i}, REPEAT('{i} ', 50))" for i in range(40))
    for name, partitions in tables.items():
        server.run(
            f"CREATE TABLE {database}.{name} (id INT PRIMARY KEY, v VARCHAR(300)) ENGINE=MyISAM {partitions}",
            f"INSERT INTO {database}.{name} VALUES {rows}",
        )
    server.run(f"GRANT LOCK TABLES ON {database}.* TO '{server.capture_user}'@'%'")
    follower = follow(database, server)
    follower.check(server, database)
    server.run("FLUSH TABLES")
    for path in (server.data_folder / database).glob("*.MYD"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"\0" * 300)
    server.run(f"USE {database}", "/* x */ REPAIR TABLE missing, t, u EXTENDED")
    if "p" in tables:
        server.run(f"ALTER TABLE {database}.p REPAIR PARTITION p0", f"ALTER TABLE {database}.gone REPAIR PARTITION p0")
    copy = follower.check(server, database)
    for name in tables:
        assert server.query(f"SELECT COUNT(*) FROM {database}.{name}")[0][0] < 40
        assert copy.kinds(f"{database}.{name}") == ["schema"], name
    assert copy.kinds(f"{database}.a") == []
