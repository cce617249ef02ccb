"""Tables that are brought by other queries than before, as when two inputs become one: no row is there twice."""

import pytest

from databus.core import Checkpoint
from databus.pipeline._handle import Bringing
from databus.testing._change_log import ORDERS, STOCK
from tests.kafka.dead_letters import EVENTS
from tests.kafka.moving import TABLES, Killed, Process, ids_in, log_of, of_tables
from tests.kafka.support import new_prefix
from tests.outputs.harnesses import order

A, B, C, D, BOTH = (f"outputs/topics/{name}@shop" for name in ("a", "b", "c", "d", "both"))


def both(count):
    return log_of(*(TABLES[number % 2] for number in range(count)))


@pytest.mark.parametrize("transactions", [True, False])
def test_two_queries_that_become_one_repeat_nothing(kafka, tmp_path, transactions):
    """Also where nothing was killed: one of them was further."""
    prefix, log = new_prefix(), both(10)
    options = {} if transactions else {"transactions": False, "buckets": 1}
    process = Process(kafka, tmp_path, prefix, {A: of_tables("orders"), B: of_tables("events")}, **options)
    process.write(A, log, 3)
    process.write(B, log, 8)
    for end in (5, 10):
        process = Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)}, **options)
        process.write(BOTH, log, end)
    attempts = 1 if transactions else 2  # of each task: without transactions both are seen
    assert ids_in(kafka, prefix) == sorted([*range(1, 11)] * attempts)


def test_the_number_of_buckets_may_change_before_all_tables_of_a_merged_query_are_as_far(kafka, tmp_path):
    prefix, log = new_prefix(), both(10)
    process = Process(kafka, tmp_path, prefix, {A: of_tables("orders"), B: of_tables("events")})
    process.write(A, log, 3)
    process.write(B, log, 8)
    Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)}).write(BOTH, log, 5)
    process = Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)}, buckets=3)
    process.write(BOTH, log, 10, is_killed=True)
    process = Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)}, buckets=3)
    process.write(BOTH, log, 10)
    assert ids_in(kafka, prefix) == [*range(1, 11)]


@pytest.mark.parametrize("killed", [A, B])
def test_two_queries_that_become_one_after_a_kill_repeat_nothing(kafka, tmp_path, killed):
    prefix, log = new_prefix(), both(12)
    process = Process(kafka, tmp_path, prefix, {A: of_tables("orders"), B: of_tables("events")})
    process.write(A, log, 3)
    process.write(B, log, 6)
    process.write(killed, log, 9, is_killed=True)
    for end in (4, 7, 8, 12):
        process = Process(kafka, tmp_path, prefix, {BOTH: of_tables("orders", "events")})
        process.write(BOTH, log, end, is_killed=end == 7)
    assert ids_in(kafka, prefix) == [*range(1, 13)]


def test_a_table_whose_query_never_began_is_read_by_a_snapshot_where_another_query_goes_on_with_it(kafka, tmp_path):
    """That one begins where the source's other tables stand: what lies before would be missing."""
    prefix, log = new_prefix(), both(4)
    Process(kafka, tmp_path, prefix, {A: of_tables("events"), B: Bringing("shop/main.orders")}).write(A, log, 2)
    process = Process(kafka, tmp_path, prefix, {C: of_tables("orders"), D: Bringing("shop/main.events")})
    assert process.begun_at(C, log) == 2
    assert process.handle.stream(C).incomplete == {"shop/main.orders"}


@pytest.mark.parametrize("runs", [[(B, A)], [(A,), (B,)]], ids=["it begins first", "the other has gone on"])
def test_a_table_that_leaves_a_query_which_still_runs_repeats_nothing_after_a_kill(kafka, tmp_path, runs):
    prefix, log = new_prefix(), both(10)
    process = Process(kafka, tmp_path, prefix, {A: of_tables("orders", "events")})
    process.write(A, log, 3)
    process.write(A, log, 7, is_killed=True)
    for names in runs:
        process = Process(kafka, tmp_path, prefix, {A: of_tables("orders"), B: Bringing("shop/main.events")})
        for name in names:
            for end in (9, 10):
                process.write(name, log, end)
    assert ids_in(kafka, prefix) == [*range(1, 11)]


def test_a_query_whose_table_is_written_otherwise_in_the_file_repeats_nothing(kafka, tmp_path):
    """It is the same table, with its physical source or without."""
    prefix, log = new_prefix(), log_of(*["events"] * 8)
    process = Process(kafka, tmp_path, prefix, {A: Bringing("main.events")})
    process.write(A, log, 3)
    process.write(A, log, 5, is_killed=True)
    process = Process(kafka, tmp_path, prefix, {A: Bringing("shop/main.events")})
    process.write(A, log, 8)
    assert ids_in(kafka, prefix) == [*range(1, 9)]


@pytest.mark.parametrize("first", [A, B])
def test_two_queries_that_exchange_their_tables_repeat_nothing(kafka, tmp_path, first):
    """As where two filters exchange their names; whichever of the two begins first."""
    prefix, log = new_prefix(), both(12)
    of = {A: Bringing("shop/main.orders"), B: Bringing("shop/main.events")}
    process = Process(kafka, tmp_path, prefix, of)
    for name, end in ((A, 4), (B, 6)):
        process.write(name, log, end)
        process.write(name, log, end + 2, is_killed=True)
    for names in ((first,), (A, B)):
        process = Process(kafka, tmp_path, prefix, {A: of[B], B: of[A]})
        for name in names:
            process.write(name, log, 12)
    assert ids_in(kafka, prefix) == [*range(1, 13)]


def test_a_query_that_goes_back_for_a_table_loses_none_of_its_rows(kafka, tmp_path):
    """Tasks of the process that wrote it before know it further than it is."""
    prefix, log = new_prefix(), both(10)
    process = Process(kafka, tmp_path, prefix, {A: of_tables("orders"), B: of_tables("events")})
    process.write(A, log, 8)
    process.write(B, log, 2)
    Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)}).write(BOTH, log, 3)
    process = Process(kafka, tmp_path, prefix, {A: of_tables(*TABLES)})
    for end in (6, 10):
        process.write(A, log, end)
    assert ids_in(kafka, prefix) == [*range(1, 11)]


def write_until_the_topic_knows(process, name, log, end, monkeypatch):
    """Killed between what the topic is told of the query's name and what the ledger is."""

    def kill(*_):
        raise Killed

    process.begin(name)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(process.handle, "_put", kill)
        process.write(name, log, end)


def test_a_run_that_was_killed_once_the_topic_knew_of_the_new_name_repeats_nothing(kafka, tmp_path, monkeypatch):
    """The ledger says next time that it does not."""
    prefix, log = new_prefix(), both(8)
    process = Process(kafka, tmp_path, prefix, {A: of_tables(*TABLES)})
    process.write(A, log, 2)
    process.write(A, log, 6, is_killed=True)
    write_until_the_topic_knows(Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)}), BOTH, log, 7, monkeypatch)
    process = Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)})
    process.write(BOTH, log, 8)
    assert ids_in(kafka, prefix) == [*range(1, 9)]


def test_a_merge_that_is_taken_back_after_a_kill_repeats_nothing(kafka, tmp_path, monkeypatch):
    """The topic knows the rows by the merged query's name alone then."""
    prefix, log = new_prefix(), both(10)
    apart = {A: of_tables("orders"), B: of_tables("events")}
    process = Process(kafka, tmp_path, prefix, apart)
    process.write(A, log, 3)
    process.write(B, log, 5)
    process.write(B, log, 8, is_killed=True)
    write_until_the_topic_knows(Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)}), BOTH, log, 7, monkeypatch)
    process = Process(kafka, tmp_path, prefix, apart)
    for name in apart:
        process.write(name, log, 10)
    assert ids_in(kafka, prefix) == [*range(1, 11)]


@pytest.mark.parametrize("begins", [(), (A, B)], ids=["one is further", "both begin"])
def test_a_table_whose_rows_are_routed_to_two_queries_loses_none(kafka, tmp_path, begins):
    """They are of one table, and none of them has the other's rows."""
    prefix, log = new_prefix(), log_of(*["orders"] * 10)
    Process(kafka, tmp_path, prefix, {BOTH: of_tables("orders")}).write(BOTH, log, 4)
    process = Process(kafka, tmp_path, prefix, dict.fromkeys((A, B), Bringing("shop/main.orders")))
    for name in begins:
        process.begin(name)
    for end in (8, 10):
        process.write(A, log, end, ids=[2, 4, 6, 8, 10])
        process.write(B, log, end, ids=[1, 3, 5, 7, 9])
    assert ids_in(kafka, prefix) == [*range(1, 11)]


RENAMED = [{C: A, D: B}, {C: B, D: A}, {A: A, C: B}, {C: A, B: B}, {BOTH: None}]


@pytest.mark.parametrize("renamed", RENAMED, ids=lambda names: ", ".join(each.split("/")[-1] for each in names))
def test_branches_that_stand_apart_lose_no_row_by_other_names(kafka, tmp_path, renamed):
    """How far one of them was says nothing of the rows of the other. Who renames one of them repeats nothing."""
    prefix, log = new_prefix(), log_of(*["orders"] * 10)
    rows = {A: [2, 4, 6, 8, 10], B: [1, 3, 5, 7, 9], None: None}
    process = Process(kafka, tmp_path, prefix, dict.fromkeys((A, B), Bringing("shop/main.orders")))
    process.write(A, log, 4, ids=rows[A])
    process.write(B, log, 8, ids=rows[B])
    for end in (9, 10):
        process = Process(kafka, tmp_path, prefix, dict.fromkeys(renamed, Bringing("shop/main.orders")))
        for name, old in renamed.items():
            process.write(name, log, end, ids=rows[old])
    found = ids_in(kafka, prefix)
    assert sorted({*found}) == [*range(1, 11)]
    again = [] if {A, B} & {*renamed} else [5, 7]  # nobody knows by then whose they were
    assert sorted(found) == sorted([*range(1, 11), *again])


def test_a_query_without_rows_for_a_while_may_become_one_with_another(kafka, tmp_path):
    """What it has in the topics ends before where its ledger says."""
    prefix, log = new_prefix(), log_of("orders", *["events"] * 6)
    process = Process(kafka, tmp_path, prefix, {A: of_tables("orders"), B: of_tables("events")})
    process.write(A, log, 1)
    process.handle.advance(A, Checkpoint({"shop": log.position(5)}))  # as Spark moves on without a batch
    process.write(B, log, 6)
    process = Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)})
    process.write(BOTH, log, 7)
    assert ids_in(kafka, prefix) == [*range(1, 8)]


def test_a_query_that_went_on_without_rows_may_become_one_with_another(kafka, tmp_path):
    """It has not told the topic what it goes on from, and the ledger alone knows how far it is."""
    prefix, log = new_prefix(), log_of("orders", "events", "orders", "orders", "events", "orders")
    process = Process(kafka, tmp_path, prefix, {A: of_tables(*TABLES)})
    process.write(A, log, 2)
    orders, events = "outputs/topics/orders@shop", "outputs/topics/events"
    process = Process(kafka, tmp_path, prefix, {orders: of_tables("orders"), events: Bringing("shop/main.events")})
    process.begin(events)
    process.write(orders, log, 4)
    process.handle.advance(events, Checkpoint({"shop": log.position(4)}))
    process = Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)})
    process.write(BOTH, log, 6)
    assert ids_in(kafka, prefix) == [*range(1, 7)]


def test_a_merged_query_that_catches_up_may_go_on_without_rows(kafka, tmp_path):
    """Its topics end before where its ledger says, which is still before where one of the two stood."""
    prefix, log = new_prefix(), log_of("orders", "orders")
    for number in (3, 4):
        log.begin().insert(STOCK, {"Shelf no": f"{number}", "price": number, 'the "count"': 1, "raw": b""})
    log.begin().insert(ORDERS, order(5))
    log.begin().insert(EVENTS, {"id": 6, "note": "x"})
    process = Process(kafka, tmp_path, prefix, {A: of_tables("orders"), B: of_tables("events")})
    process.write(A, log, 1)
    process.write(B, log, 6)
    process = Process(kafka, tmp_path, prefix, {BOTH: of_tables(*TABLES)})
    process.write(BOTH, log, 2)
    process.handle.advance(BOTH, Checkpoint({"shop": log.position(4)}))
    process.write(BOTH, log, 6)
    assert ids_in(kafka, prefix) == [1, 2, 5, 6]
