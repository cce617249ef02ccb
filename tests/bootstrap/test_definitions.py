"""Definitions of tables over time: which one is in force, which are known, and what they let an answer say."""

from dataclasses import replace

import pytest

from databus.bootstrap import AnswerRequest, KeepSection, KeptPast, NoteTaker, TableExtent, kinds_of, plan, standing_at
from databus.bootstrap._keep import forgotten
from databus.bootstrap._noting import Stand, _with_known, definitions_of
from databus.core import SEQ_DONE, ControlKind, PositionPurged, ServiceUnavailable, SourceCheckpoint, UnknownSource
from databus.filters import StreamFilter
from databus.link import RelayClient
from databus.log import SchemaVersion
from databus.places import Noted
from databus.schema import Column, TableSchema
from databus.stores import HeadNote, KnownSchemas, LoggedControl, StateNote, StateTable, StoreTable, definition_at
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.followers import Follower
from tests.bootstrap.test_service import TABLES, churn

HOUR_US = 3_600_000_000
ORDERS = "shop/main.orders"


def table(name="orders", *columns, **more):
    kinds = [Column(each, "int64", nullable=each != "id") for each in ("id", *columns)]
    return TableSchema(f"main.{name}", tuple(kinds), ("id",), **more)


def control(kind, scn, of, **body):
    return LoggedControl(of.source, ControlKind(kind), (scn, 1), body, of)


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path, f"{TABLES} INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');").running() as running:
        churn(running, 1, 20)
        running.fill()
        yield running


def test_a_definition_that_comes_back_is_the_one_in_force(shop):
    """A column that gets its first name again makes no third definition: the first one counts again, and so do the
    conditions over that column.
    """
    shop.execute("ALTER TABLE orders RENAME COLUMN total TO amount")
    shop.captured()
    shop.execute("ALTER TABLE orders RENAME COLUMN amount TO total")
    shop.execute("UPDATE orders SET total = id % 7")
    shop.forget()
    there = {each.name: each.fingerprint for each in shop.client.sources()}
    service = shop.client.bootstrap(shop.service_url)
    assert {each.name: each.fingerprint for each in service.sources()} == there
    follower = Follower().follow(shop.url, sources=[ORDERS], where="total >= 3")
    assert len(follower.rows("main.orders")) == len(shop.select("SELECT id FROM orders WHERE total >= 3"))
    assert "state" in follower.kinds


def test_answers_over_definitions_that_the_relay_does_not_know_any_more(shop):
    """A relay whose folder was lost, and another of the same database, are younger than the stores."""
    follower = Follower().follow(shop.url, sources=[ORDERS])
    shop.execute("INSERT INTO orders VALUES (500, 'o', 1)", "DELETE FROM orders WHERE id = 12")
    shop.captured()
    shop.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
    shop.forget()
    young = tuple(
        each
        for each in definitions_of(shop.client, PHYSICAL)
        if len(each.table.names) != 3 or each.table.source != "main.orders"
    )
    at, state, _, log = shop.noted()
    shop._noting.look(at, state, young, log)
    assert {each.table.fingerprint for each in shop.head().definitions} > {each.table.fingerprint for each in young}
    every = Follower().follow(shop.url, sources=[ORDERS], look_back="all")
    follower.follow(shop.url, sources=[ORDERS])
    assert every.is_as(shop, "main.orders")
    assert follower.is_as(shop, "main.orders")


def test_no_number_is_given_to_two_tables():
    """Whose tables it is would decide who sees them."""
    old = [
        SchemaVersion(1, 1, table("gone")),
        SchemaVersion(2, 1, table("orders", "a")),
        SchemaVersion(3, 1, table("x")),
    ]
    now = (SchemaVersion(1, 1, table("orders", "a", "b")), SchemaVersion(3, 1, table("new")))
    found = _with_known(now, old)
    assert found[-2:] == now
    ids = {each.table.source: each.source_id for each in found}
    assert len({*ids.values()}) == len(ids) == 4
    assert [each.source_id for each in found if each.table.source == "main.orders"] == [1, 1]
    assert _with_known(now, found) == found


def kept(states, head, *controls):
    by_source = lambda source: [each for each in controls if each.source == source]  # noqa: E731
    return KeptPast(states, head, by_source, 1 << 62)


def test_images_that_were_missing_for_a_while_make_a_table_come_whole():
    """Of an update without its first image nobody knows whether it has left the condition."""
    whole, part = table("orders", "a"), table("orders", "a", first_images=False)
    state = StateNote(SourceCheckpoint("u", 9), 1 << 40, {"main.orders": StateTable((), whole)})
    head = HeadNote(SourceCheckpoint("u", 9, log="A"), (0, 0))
    asked = StreamFilter.parse(filters={ORDERS: {"where": "a >= 2", "columns": None}})
    ask = AnswerRequest(PHYSICAL, frozenset({"main.orders"}), (ORDERS,), asked)
    since = SourceCheckpoint("u", 5)
    for controls, kind in (
        ([control("schema", 1, whole, previous=None)], TableExtent.SINCE),
        ([control("schema", 1, part, previous=None), control("schema", 7, whole, previous="0")], TableExtent.ALL),
        ([control("schema", 6, part, previous="0"), control("schema", 7, whole, previous="0")], TableExtent.ALL),
    ):
        assert kinds_of(state, since, ask, kept([state], head, *controls), is_inside=False) == {"main.orders": kind}


def test_every_change_is_not_given_where_a_snapshot_of_another_log_was_open():
    """The rest of that snapshot is in no log store, and who would go on from there would take its rows for all."""
    head = HeadNote(SourceCheckpoint("u", 9, log="A"), (0, 0))
    begun = control("snapshot_begin", 1, table(), generation=1)
    ask = AnswerRequest(PHYSICAL, frozenset({"main.orders"}), (ORDERS,), every=True)
    inside = SourceCheckpoint("u", 5, seq=1 << 50, log="B", snapshots={"main.orders": 7})
    with pytest.raises(PositionPurged, match="in another log"):
        plan(inside, ask, kept([], head, begun))
    assert plan(replace(inside, snapshots={"main.stock": 7}), ask, kept([], head, begun))
    assert plan(replace(inside, log="A"), ask, kept([], head, begun))
    in_parts = SourceCheckpoint("u", 5, seq=3, log="B")
    assert plan(in_parts, ask, kept([], head, begun)).start.scn == 4, "the transaction comes again, whole"


@pytest.mark.parametrize(("body", "is_whole"), [({"as_configured": True}, True), ({"as_configured": False}, False)])
def test_a_table_that_is_captured_with_a_condition_is_whole_when_its_snapshot_has_ended(body, is_whole):
    of = table()
    begin = control("snapshot_begin", 1, of, generation=1)
    end = control("snapshot_end", 2, of, generation=1, begin=[1, 1], complete=False, **body)
    assert standing_at([begin, end], (9, 0)).is_incomplete is not is_whole


def test_states_are_forgotten_while_one_table_is_being_read_for_days():
    """Beside the newest state of each table, so that whoever asks for others alone goes on being answered."""
    others = {"main.stock": StateTable((), table("stock"))}
    both = {**others, "main.orders": StateTable((), table())}
    now_us = 1_000 * HOUR_US
    states = [StateNote(SourceCheckpoint("u", 1), 1 << 40, both, noted_us=now_us - 100 * HOUR_US)]
    states += [
        StateNote(
            SourceCheckpoint("u", n), 1 << 40, others, frozenset({"main.orders"}), noted_us=now_us - (99 - n) * HOUR_US
        )
        for n in range(2, 90)
    ]
    head = HeadNote(SourceCheckpoint("u", 1000, log="A"), (0, 0))
    gone = forgotten(states, head, KeepSection(hours=1, days=0), now_us)
    assert [each.position.scn for each in states if each not in gone] == [1, 89]


def test_a_table_that_is_not_kept_is_not_left_out_in_silence(shop):
    """Who asks by a pattern would go on without what happened to it meanwhile."""
    shop.config.options.tables[:] = [ORDERS]
    follower = Follower().follow(shop.url)
    shop.execute('UPDATE stock SET "left" = -1')
    shop.forget()
    for asked in ({}, {"sources": ["shop/*"]}):
        with pytest.raises(UnknownSource, match="does not keep"):
            Follower().follow(shop.url, **asked)
    with pytest.raises(UnknownSource, match="does not keep"):
        follower.follow(shop.url)
    assert "state" in Follower().follow(shop.url, sources=[ORDERS]).kinds


def test_what_was_before_a_table_was_kept_is_not_taken_for_held(shop):
    """Where `tables` of the service is given more: every change begins anew, and older positions get tables whole."""
    shop.config.options.tables[:] = [ORDERS]
    shop.fill()
    old = Follower().follow(shop.url)
    shop.execute('UPDATE stock SET "left" = -1', "UPDATE orders SET total = 1")
    shop.fill()
    shop.config.options.tables.append("shop/main.stock")
    at, state, definitions, log = shop.noted()
    end = shop.captured()
    shop._noting.look(at, state, definitions, log, (end.scn, end.ts_us))
    assert shop.head().low == (end.scn, SEQ_DONE)
    ask = AnswerRequest(PHYSICAL, frozenset({"main.orders", "main.stock"}), every=True)
    with pytest.raises(PositionPurged, match="is kept from"):
        plan(old.checkpoint.sources[PHYSICAL], ask, kept(shop.states(), shop.head()))
    with pytest.raises(ServiceUnavailable):
        plan(old.checkpoint.sources[PHYSICAL], replace(ask, every=False), kept(shop.states()[:-1], shop.head()))


def test_a_table_that_is_made_again_without_a_word_is_there_and_has_the_definition_of_what_follows():
    """The log of MySQL shows it by its rows alone, and their definition by the next control, or by that of now."""
    old, new = table("orders", "a"), table("orders", "b")
    known = KnownSchemas(PHYSICAL, [SchemaVersion(1, 1, old), SchemaVersion(1, 2, new)])
    drop, again = control("drop", 5, old), control("truncate", 9, new)
    assert definition_at("main.orders", (4, 0), [drop], known) == old
    assert definition_at("main.orders", (6, 0), [drop, again], known) == new
    assert definition_at("main.orders", (6, 0), [drop], known) == new
    standing = standing_at([drop], (7, 0))
    for first, is_gone in ((None, True), ((8, 0), True), ((6, 0), False)):
        assert standing.is_gone(lambda _, first=first: first, (7, 0)) is is_gone
    assert not standing_at([drop, again], (9, 1)).is_gone(lambda _: None, (9, 1))


def test_definitions_are_asked_for_only_where_one_was_seen_that_is_not_held(shop, monkeypatch):
    """The relay has many tables, and the stores are looked at all the time; none is noted without its own."""
    asked, register = [], RelayClient.register
    monkeypatch.setattr(RelayClient, "register", lambda self, names: asked.append(names) or register(self, names))
    taker = NoteTaker(shop.config)

    def look(*statements):
        shop.execute(*statements)
        shop.fill()
        del asked[:]
        for _ in range(3):
            taker._look(PHYSICAL, Stand(shop.written["log"]), Stand(shop.written["state"]))
        return len(asked)

    try:
        assert look("UPDATE orders SET total = 1") == 1, "nothing is held yet"
        assert look("UPDATE orders SET total = 2") == 0
        assert look("ALTER TABLE orders RENAME COLUMN total TO amount", "UPDATE orders SET amount = 3") == 1
        assert look("ALTER TABLE orders RENAME COLUMN amount TO total", "UPDATE orders SET total = 4") == 1
        assert look("CREATE TABLE more (id INTEGER PRIMARY KEY)", "INSERT INTO more VALUES (1)") == 1
        assert look("UPDATE orders SET total = 5") == 0
        names = {each.table.source: each.table.names for each in shop.head().definitions}
        assert (names["main.more"], "total" in names["main.orders"]) == (("id",), True)
    finally:
        taker.close()


def test_stores_that_nobody_has_written_to_are_not_opened_again_at_each_look(shop, monkeypatch):
    """But where the relay is by then is noted, by which their lag is measured."""
    taker, opened, refresh = NoteTaker(shop.config), [], StoreTable.refresh
    monkeypatch.setattr(StoreTable, "refresh", lambda self: opened.append(self.folder) or refresh(self))
    stands = Stand(shop.written["log"]), Stand(shop.written["state"])
    try:
        taker._look(PHYSICAL, *stands)
        assert opened
        del opened[:]
        shop.execute("UPDATE orders SET total = 1")
        end = shop.captured()
        taker._look(PHYSICAL, *stands)
        assert (opened, shop.head().published[0]) == ([], end.scn)
    finally:
        taker.close()


@pytest.fixture
def opened(monkeypatch):
    """The tables that are opened, as `log/db.table` and `state/db.table`."""
    folders, refresh = [], StoreTable.refresh

    def opens(table):
        folders.append(f"{table.folder.parent.parent.name}/{table.folder.name}")
        return refresh(table)

    monkeypatch.setattr(StoreTable, "refresh", opens)
    return folders


def test_of_many_tables_those_are_opened_again_that_were_written(shop, opened, monkeypatch):
    """By the marks in the ledgers; now and then all are, since others may have arranged their rows otherwise."""
    taker = NoteTaker(shop.config)
    marks = {source: Noted((1, 0), "1") for source in ("main.orders", "main.stock", "main.ballast")}
    monkeypatch.setattr(shop, "note", lambda: None)

    def look(marks):
        del opened[:]
        log, state = (Stand(shop.written[name], marks=marks) for name in ("log", "state"))
        taker._look(PHYSICAL, log, state)
        return {*opened}

    try:
        shop.execute("UPDATE ballast SET n = n + 1")
        shop.fill()
        everything = look(marks)
        assert everything >= {"log/main.orders", "state/main.stock"}
        shop.execute("INSERT INTO orders VALUES (70, 'late', 1)")
        shop.fill()
        assert look({**marks, "main.orders": Noted((2, 0), "2")}) == {"log/main.orders", "state/main.orders"}
        follower = Follower().follow(shop.url, start="state", sources=["shop/main.orders"])
        assert follower.is_as(shop, "main.orders")
        taker._noting[PHYSICAL].relook_s = 0
        assert look({**marks, "main.orders": Noted((2, 0), "2")}) == everything
    finally:
        taker.close()


def test_a_table_that_was_ahead_of_its_ledger_is_opened_again_when_that_has_caught_up(shop, monkeypatch):
    """The batch comes again after a kill, and writes nothing to that table: its mark stays."""
    taker, positions = NoteTaker(shop.config), []
    marks = {source: Noted((9, 9), "1") for source in ("main.orders", "main.stock", "main.ballast")}
    monkeypatch.setattr(shop, "note", lambda: None)
    try:
        for statement in (
            "UPDATE ballast SET n = 7",
            "UPDATE ballast SET n = 8",
            "INSERT INTO orders VALUES (71, 'x', 1)",
        ):
            shop.execute(statement)
            shop.fill()
            positions.append(shop.written["state"])
            if len(positions) != 2:
                for position in positions[-2:]:
                    marks["main.orders"] = Noted((len(positions), 0), "1")  # as the target says at the next start
                    taker._look(PHYSICAL, Stand(shop.written["log"]), Stand(position, marks=marks))
    finally:
        taker.close()
    last, before = shop.states()[-1], shop.states()[-2]
    assert (before.position.pair, last.position.pair) == (positions[1].pair, positions[2].pair)
    assert last.tables["main.orders"].rows == len(shop.select("SELECT id FROM orders"))


def test_a_server_opens_a_table_again_when_its_note_has_changed(shop, opened):
    def asked():
        del opened[:]
        assert Follower().follow(shop.url, start="state").is_as(shop, "main.orders", "main.stock")
        return [name for name in opened if name.startswith("log/")]

    shop.execute("INSERT INTO stock VALUES (70, 1)")
    shop.fill()
    assert sorted(asked()) == ["log/main.ballast", "log/main.orders", "log/main.stock"]
    assert asked() == []
    shop.execute("INSERT INTO orders VALUES (70, 'late', 1)")
    shop.fill()
    assert asked() == ["log/main.orders"]
