"""A replica that leaves changes out of its log is never followed, as the first host or as the one to turn to."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import InputError, ServiceUnavailable
from databus.sources.mysql import MysqlConfig
from databus.sources.mysql._captured_tables import TableSelection
from databus.sources.mysql.server import Hidden, check_source, like
from databus.testing.servers import Server
from tests.mysql.following import config_of, create, hosts

MakeServer = Callable[..., Server]

HIDING = [
    ("replicate_ignore_table", "shop.b"),
    ("replicate_ignore_db", "shop"),
    ("replicate_do_db", "other"),
    ("replicate_do_table", "shop.a"),
    ("replicate_wild_do_table", "shop.a%"),
    ("replicate_wild_ignore_table", "sh%.b"),
    ("replicate_wild_ignore_table", r"sho\_.b,%.b_"),
    ("replicate_rewrite_db", "shop -> elsewhere"),
    ("replicate_rewrite_db", "elsewhere -> shop"),
]
HARMLESS = [
    ("replicate_ignore_table", "shop.not_captured"),
    ("replicate_ignore_db", "other"),
    ("replicate_do_db", "shop"),
    ("replicate_wild_do_table", "shop.%"),
    ("replicate_wild_ignore_table", "mysql.%"),
    ("replicate_wild_ignore_table", "other.%"),
    ("replicate_wild_ignore_table", r"%.not\_captured"),
    ("replicate_rewrite_db", "other -> another"),
]


@pytest.fixture
def two(kind: str, new_server: MakeServer) -> tuple[Server, Server]:
    """A primary with the load's tables and its replica, with GTIDs."""
    primary, replica = new_server(kind), new_server(kind)
    primary.run("CREATE DATABASE shop")
    create(primary, "shop")
    replica.replicate_from(primary)
    replica.catch_up(primary)
    return primary, replica


def set_filter(replica: Server, name: str, value: str, channel: str = "") -> None:
    """Set one filter of a replica, or none with an empty value; it goes on then."""
    if replica.flavor == "mariadb":
        prefix = f"{channel}." if channel else ""
        replica.run("STOP ALL SLAVES", f"SET GLOBAL {prefix}{name} = '{value.replace(' ', '')}'")
    else:
        items = [f"'{each}'" if "_wild_" in name else each for each in value.split(",") if each]
        if "->" in value:
            items = [f"({value.replace('->', ',')})"]
        of_channel = f" FOR CHANNEL '{channel}'" if channel else ""
        replica.run(
            f"STOP {replica._replica}",
            f"CHANGE REPLICATION FILTER {name.upper()} = ({', '.join(items)}){of_channel}",
        )
    replica.run("START ALL SLAVES" if replica.flavor == "mariadb" else f"START {replica._replica}")


def errors_of(config: MysqlConfig, server: Server) -> list[str]:
    """What a check says against a server because of filters."""
    address = hosts(server)[0]
    return [
        each.what
        for each in check_source(config)
        if (each.name, each.severity, each.server) == ("replication_filter", "error", address)
    ]


def test_a_filtered_replica_is_not_turned_to(two, follow) -> None:
    primary, replica = two
    set_filter(replica, "replicate_ignore_table", "shop.b")
    follower = follow("shop", primary, replica)
    follower.check(primary, "shop")
    primary.run("INSERT INTO shop.b VALUES ('lost', 1, 1)", "DELETE FROM shop.a WHERE id < 20")
    replica.catch_up(primary)
    primary.kill()
    follower.until(lambda: any("replicate_ignore_table" in str(error) for error in follower.tried))
    assert all(isinstance(error, ServiceUnavailable) for error in follower.tried)
    primary.start()
    follower.check(primary, "shop")


def test_a_filtered_replica_is_refused_as_the_first_host_too(two, follow) -> None:
    primary, replica = two
    set_filter(replica, "replicate_ignore_table", "shop.b")
    for order in ([replica], [replica, primary]):
        follower = follow("shop", *order)
        if len(order) == 1:
            with pytest.raises(InputError, match=r"replicate_ignore_table = shop.b keeps .*shop.b from its log"):
                follower.start()
        else:
            follower.check(primary, "shop")


def test_each_filter_is_judged_by_what_is_captured(two) -> None:
    _, replica = two
    config = config_of("shop", replica, exclude=["not_captured"])
    for name, value in HIDING:
        set_filter(replica, name, value)
        assert any(name in each for each in errors_of(config, replica)), (name, value)
        set_filter(replica, name, "")
    for name, value in HARMLESS:
        set_filter(replica, name, value)
        assert errors_of(config, replica) == [], (name, value)
        set_filter(replica, name, "")
    assert errors_of(config, replica) == []


def test_a_filter_of_another_channel_counts(two, new_server, kind) -> None:
    if kind == "mysql-5.7":
        pytest.skip("MySQL 5.7 has the same filters for all channels")
    _, replica = two
    other = new_server(kind)
    if replica.flavor == "mariadb":
        address = f"MASTER_HOST = '127.0.0.1', MASTER_PORT = {other.port}, MASTER_USER = 'nobody'"
        replica.run(f"CHANGE MASTER 'second' TO {address}")
    else:
        address = f"SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {other.port}, SOURCE_USER = 'nobody'"
        replica.run(f"CHANGE REPLICATION SOURCE TO {address} FOR CHANNEL 'second'")
    config = config_of("shop", replica)
    assert errors_of(config, replica) == []
    set_filter(replica, "replicate_do_db", "other", "second")
    (said,) = errors_of(config, replica)
    assert "second" in said


def test_other_things_that_a_mariadb_replica_leaves_out_count(new_server) -> None:
    primary, replica = new_server("mariadb-10.11"), new_server("mariadb-10.11")
    primary.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)")
    replica.replicate_from(primary)
    config = config_of("shop", replica)
    assert errors_of(config, replica) == []
    for option in ("IGNORE_DOMAIN_IDS = (7)", "DO_DOMAIN_IDS = (0)", "IGNORE_SERVER_IDS = (77)"):
        replica.run("STOP SLAVE", f"CHANGE MASTER TO {option}")
        assert len(errors_of(config, replica)) == 1, option
        replica.run(f"CHANGE MASTER TO {option.partition('(')[0]}()")
    replica.run("SET GLOBAL replicate_events_marked_for_skip = FILTER_ON_SLAVE")
    assert "skip_replication" in errors_of(config, replica)[0]


def test_a_user_who_may_not_see_filters_is_told_what_to_grant(new_server) -> None:
    primary, replica = new_server("mariadb-10.11"), new_server("mariadb-10.11")
    replica.run(f"REVOKE SLAVE MONITOR ON *.* FROM '{replica.capture_user}'@'%'")
    found = [each for each in check_source(config_of("shop", replica)) if each.name == "replication_filter"]
    assert [each.severity for each in found] == ["warning"]
    found = [each for each in check_source(config_of("shop", primary, replica)) if each.name == "replication_filter"]
    assert [(each.severity, each.server) for each in found] == [("error", hosts(replica)[0])]
    assert "GRANT SLAVE MONITOR" in found[0].mend


NAMES = ["a", "b", "ab", "ba", "a_", "mysql"]
ITEMS = st.sampled_from(NAMES)
WILD = st.text("ab_%", min_size=1, max_size=3)
SHELL = st.text("ab*?_", min_size=1, max_size=3)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "replicate_do_db": st.lists(ITEMS, min_size=1, max_size=2),
        "replicate_ignore_db": st.lists(ITEMS, min_size=1, max_size=2),
        "replicate_do_table": st.lists(st.tuples(ITEMS, ITEMS).map(".".join), min_size=1, max_size=3),
        "replicate_ignore_table": st.lists(st.tuples(ITEMS, ITEMS).map(".".join), min_size=1, max_size=2),
        "replicate_wild_do_table": st.lists(st.tuples(WILD, WILD).map(".".join), min_size=1, max_size=2),
        "replicate_wild_ignore_table": st.lists(st.tuples(WILD, WILD).map(".".join), min_size=1, max_size=2),
    },
)
PATTERNS = st.one_of(SHELL, st.tuples(SHELL, SHELL).map(".".join))


def _is_like(text: str, pattern: str) -> bool:
    tokens = "".join({"": "?", "**": "*"}.get(each, each) for each in like(pattern))
    return fnmatchcase(text, tokens)


def _applied(filters: Mapping[str, list[str]], database: str, table: str) -> bool:
    """As the manuals say it of rows: "How servers evaluate replication filtering rules"."""
    name = f"{database}.{table}"
    if "replicate_do_db" in filters:
        if database not in filters["replicate_do_db"]:
            return False
    elif database in filters.get("replicate_ignore_db", ()):
        return False
    steps = [
        (True, name in filters.get("replicate_do_table", ())),
        (False, name in filters.get("replicate_ignore_table", ())),
        (True, any(_is_like(name, each) for each in filters.get("replicate_wild_do_table", ()))),
        (False, any(_is_like(name, each) for each in filters.get("replicate_wild_ignore_table", ()))),
    ]
    for is_applied, fits in steps:
        if fits:
            return is_applied
    return not {"replicate_do_table", "replicate_wild_do_table"} & filters.keys()


@given(FILTERS, st.lists(PATTERNS, min_size=1, max_size=2), st.lists(PATTERNS, max_size=2))
def test_filters_that_count_as_harmless_leave_no_captured_table_out(
    filters: dict[str, list[str]], tables: list[str], exclude: list[str]
) -> None:
    """If nothing is said against filters, every captured table of every name is applied by them."""
    config = MysqlConfig.model_validate(
        {"type": "mysql", "hosts": "h", "user": "u", "tables": tables, "exclude": exclude}
    )
    selection = TableSelection(config, fold=False)
    said = list(Hidden(config, selection, 0).by({name: ",".join(items) for name, items in filters.items()}))
    lost = [
        (database, table)
        for database, table in product(NAMES, NAMES)
        if selection.selects(database, table) and not _applied(filters, database, table)
    ]
    assert said or not lost
