"""Rows that Kafka refuses, kept until somebody has mended what they were refused for; all others arrive, once."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest

from databus.core import AccessDenied, ControlKind, InputError, LimitExceeded, ServiceUnavailable, UnrepresentableValue
from databus.pipeline import TableControl, load_pipeline, outputs_with_letters
from databus.schema import Column, TableSchema
from databus.sinks.kafka._cluster import Cluster
from databus.sinks.kafka._session import Session
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.commands import databus
from tests.kafka.dead_letters import (
    BAD,
    EVENTS,
    LIMIT,
    REFUSERS,
    WORSE,
    Target,
    assert_in_order_per_key,
    log_of,
    pairs_in,
    set_topic,
)
from tests.kafka.mirrors import captured, mirror_of, told
from tests.kafka.mirrors import write as write_groups
from tests.kafka.support import messages_in, new_prefix, rows_in
from tests.kafka.test_kafka_accidents import as_other_process
from tests.kafka_source.support import Topics
from tests.outputs.harnesses import order


@REFUSERS
@pytest.mark.parametrize("transactions", [True, False], ids=["transactions", "without"])
def test_one_refused_row_among_many_is_a_letter_and_all_others_arrive(kafka, tmp_path, refuser, transactions):
    log = log_of(*["x"] * 60, BAD, *["x"] * 130)
    target = Target(kafka, tmp_path, refuser, transactions=transactions)
    target.write(log)
    (letter,) = target.letters()
    assert (letter.id, letter.pair) == ("61", (61, 1))
    assert "MSG_SIZE_TOO_LARGE" in letter.reason
    found = target.pairs()
    assert sorted({*found, (61, 1)}) == pairs_in(log)
    assert not transactions or len(found) == len(set(found)) == 190


@pytest.mark.parametrize("compression", ["none", "lz4", pytest.param("gzip", marks=pytest.mark.nightly)])
def test_many_rows_that_are_too_large_are_found_in_few_attempts(kafka, tmp_path, compression, monkeypatch):
    """The topic's own limit says which they are; where the client compresses, rows that fit so are written."""
    dice = random.Random(compression)
    notes = ["x" if dice.random() < 0.5 else dice.randbytes(dice.randint(4_500, 9_000)).hex() for _ in range(120)]
    notes += [BAD] * 3
    attempts = count_attempts(monkeypatch)
    target = Target(kafka, tmp_path, kafka={"compression.type": compression})
    log = log_of(*notes)
    target.write(log)
    is_small = {"x"} if compression == "none" else {"x", BAD}
    large = [(number, 1) for number, note in enumerate(notes, 1) if note not in is_small]
    assert target.pairs_of_letters() == large
    assert target.pairs() == [pair for pair in pairs_in(log) if pair not in set(large)]
    assert len(attempts) < 5


def count_attempts(monkeypatch):
    attempts, begin = [], Session.begin
    monkeypatch.setattr(Session, "begin", lambda session, *ledger: (attempts.append(session), begin(session, *ledger)))
    return attempts


def test_rows_at_a_limit_are_told_apart_as_the_broker_does(kafka, tmp_path, monkeypatch):
    """Those that the topic's limit leaves open are sent alone; and all are, where nobody may see the limit."""
    notes = ["y" * length for length in range(LIMIT - 400, LIMIT + 100, 100)]
    log = log_of(*notes, *["x"] * 40)
    target = Target(kafka, tmp_path / "seen")
    target.write(log)
    letters = target.pairs_of_letters()
    assert 1 < len(letters) < len(notes)
    assert target.pairs() == [pair for pair in pairs_in(log) if pair not in letters]
    monkeypatch.setattr(Cluster, "topic_settings", denied)
    other = Target(kafka, tmp_path / "unseen")
    other.write(log)
    assert other.pairs_of_letters() == letters
    assert other.pairs() == target.pairs()


def denied(cluster, topic):
    raise AccessDenied(f"{topic}: TOPIC_AUTHORIZATION_FAILED")


def test_a_limit_that_is_lowered_while_a_batch_is_written_holds_back_what_is_larger(kafka, tmp_path, monkeypatch):
    log = log_of(*["x"] * 60, BAD, "y" * 3_000, *["x"] * 60)
    target = Target(kafka, tmp_path)
    set_topic(kafka, target.topic, **{"max.message.bytes": 9_000})
    topic_settings = Cluster.topic_settings

    def lowered(cluster, topic):
        settings = topic_settings(cluster, topic)
        if topic == target.topic and settings["max.message.bytes"] == "9000":
            target.mend(LIMIT)
        return settings

    monkeypatch.setattr(Cluster, "topic_settings", lowered)
    attempts = count_attempts(monkeypatch)
    target.write(log)
    assert target.pairs_of_letters() == [(61, 1)]
    assert target.pairs() == [pair for pair in pairs_in(log) if pair != (61, 1)]
    assert len(attempts) < 6


def moved():
    """Key 2 is refused, then becomes 9, and there is another 2."""
    log = log_of("x", "x", "x")
    log.begin().update(ORDERS, order(2), order(2, BAD))
    log.begin().update(ORDERS, order(3), order(3, "y"))
    log.begin().update(ORDERS, order(2, BAD), order(2, "fine"))
    log.begin().update(ORDERS, order(2, "fine"), order(9, "fine"))
    log.begin().update(ORDERS, order(9, "fine"), order(9, "z"))
    log.begin().insert(ORDERS, order(2, "new"))
    log.begin().delete(ORDERS, order(3, "y"))
    return log


@REFUSERS
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("cuts", [[], [4, 5, 8, 11]], ids=["whole", "cut"])
def test_a_parked_key_keeps_its_order_and_so_does_the_key_that_it_becomes(kafka, tmp_path, refuser, buckets, cuts):
    log = moved()
    target = Target(kafka, tmp_path, refuser, buckets=buckets)
    target.write(log, cuts)
    assert {(row["id"], row["note"]) for row in target.rows()} >= {(1, "x"), (2, "x"), (3, "x"), (3, "y")}
    is_alone = buckets == 3  # then another task writes the new key
    assert {row["id"] for row in target.rows()} == ({1, 2, 3, 9} if is_alone else {1, 2, 3})
    target.mend()
    target.replay()
    assert target.letters() == []
    assert target.pairs() == pairs_in(log)
    assert_in_order_per_key(target)


@pytest.mark.parametrize(
    "form",
    ["debezium", *(pytest.param(form, marks=pytest.mark.nightly) for form in ("maxwell", "cloudevents_debezium"))],
)
def test_an_update_is_one_message_again_when_it_is_replayed(kafka, tmp_path, form):
    target = Target(kafka, tmp_path, format=form, deletes="both", on_truncate="skip", kafka={"linger.ms": 50})
    target.write(moved())
    assert {letter.id for letter in target.letters()} == {"2", "9"}
    target.mend()
    target.replay()
    whole = Target(kafka, tmp_path / "whole", "nobody", format=form, deletes="both", on_truncate="skip")
    whole.write(moved())

    def by_key(made):
        found = {}
        for message in (each for part in messages_in(kafka, made.topic) for each in part):
            found.setdefault(message.key(), []).append((without_clock(message.value()), message.headers()))
        return found

    assert by_key(target) == by_key(whole)


def without_clock(value):
    told = json.loads(value or b"null")
    return {name: each for name, each in told.items() if name not in ("ts_ms", "ts_us", "ts_ns")} if told else None


def by_chance(chance):
    """A log of changes of a few keys, some refused, some of which change the key; and truncations."""
    log, held = ChangeLog(), {}
    for _ in range(60):
        log.begin()
        for _ in range(chance.randint(1, 3)):
            key, note = chance.randrange(6), chance.choice(["x", "y", BAD])
            if chance.random() < 0.03:
                log.control(ControlKind.TRUNCATE, ORDERS)
                held.clear()
            elif key not in held:
                held[key] = order(key, note)
                log.insert(ORDERS, held[key])
            elif chance.random() < 0.3:
                log.delete(ORDERS, held.pop(key))
            else:
                to = chance.choice([key, *(set(range(6)) - set(held))])
                before = held.pop(key)
                held[to] = order(to, note)
                log.update(ORDERS, before, held[to])
    return log


@pytest.mark.parametrize("case", [0, *(pytest.param(case, marks=pytest.mark.nightly) for case in (1, 2))])
def test_rows_arrive_once_and_in_order_per_key_whatever_is_refused_when(kafka, tmp_path, case, seed):
    """Batches come again, cut elsewhere, by other processes; letters are replayed too early."""
    chance = random.Random(seed + case)
    log = by_chance(chance)
    target = Target(kafka, tmp_path, chance.choice(["client", "broker"]), buckets=chance.choice([1, 3]))
    done = 0
    while done < len(log.entries):
        end = min(done + chance.randint(1, 25), len(log.entries))
        write_batch(target.output, log.batch(max(0, done - chance.choice([0, 0, 9])), end))
        done = end
        if chance.random() < 0.3:
            as_other_process()
        if chance.random() < 0.2:
            target.replay()
    target.mend()
    target.replay()
    assert target.letters() == []
    truncations = [entry.pair for entry in log.entries if isinstance(entry, TableControl)]
    found = Counter(target.pairs())
    assert not {pair for pair, count in found.items() if count > 1}
    assert {pair for pair in pairs_in(log) if pair > max(truncations, default=(0, 0))} <= set(found)
    assert_in_order_per_key(target)


@pytest.mark.parametrize("kind", [ControlKind.TRUNCATE, ControlKind.DROP])
def test_a_truncation_releases_what_was_parked_before_it(kafka, tmp_path, kind):
    log = log_of(BAD)
    log.begin().update(ORDERS, order(1, BAD), order(1))
    log.begin().control(kind, ORDERS)
    log.begin().insert(ORDERS, order(1, "new"))
    target = Target(kafka, tmp_path)
    target.write(log, [1])
    assert target.letters() == []
    assert [row["note"] for row in target.rows()] == ["new"]


def test_a_whole_snapshot_releases_what_was_parked_before_it_once_it_has_ended(kafka, tmp_path):
    log = log_of(BAD)
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(2, "read")])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    target = Target(kafka, tmp_path)
    target.write(log, [1])
    assert target.letters() == []
    assert sorted(row["note"] for row in target.rows()) == ["new", "read", "x"]


def test_rows_without_a_key_are_letters_where_the_topic_is_compacted(kafka, tmp_path):
    """One alone, of which brokers do not say which it was, and several, which they name."""
    target = Target(kafka, tmp_path, "nobody", controls="none")
    topic = f"{target.prefix}.all"
    target.options["topic"] = topic
    set_topic(kafka, topic, **{"cleanup.policy": "compact"})
    target.output = target._opened()
    log = log_of("x", "y")
    log.begin().insert(EVENTS, {"id": 1, "note": "one"})
    target.write(log)
    assert [(letter.id, letter.pair) for letter in target.letters()] == [("", (3, 1))]
    for number in range(40):
        log.begin().insert(ORDERS, order(number, "z"))
        log.begin().insert(EVENTS, {"id": number, "note": "one of many"})
    write_batch(target.output, log.batch(3, len(log.entries)))
    assert len(target.letters()) == 41
    assert len([row for part in rows_in(kafka, topic) for row in part]) == 42
    set_topic(kafka, topic, **{"cleanup.policy": "delete"})
    target.replay()
    assert len([row for part in rows_in(kafka, topic) for row in part]) == 83


def test_rows_that_a_format_cannot_express_are_letters(kafka, tmp_path):
    table = TableSchema("main.orders", (Column("id", "int64"), Column("many", "uint64")), ("id",))
    log = ChangeLog()
    for number in range(50):
        log.begin().insert(table, {"id": number, "many": 2**64 - 1 if number % 20 == 13 else number})
    log.begin().update(table, {"id": 1, "many": 1}, {"id": 1, "many": 2**64 - 1})
    log.begin().update(table, {"id": 13, "many": 2**64 - 1}, {"id": 13, "many": 13})
    target = Target(kafka, tmp_path, "nobody", format="debezium")
    target.write(log)
    assert target.pairs_of_letters() == [(14, 1), (34, 1), (51, 1), (51, 2), (52, 1), (52, 2)]
    target.options["debezium"] = {"unsigned": "precise"}
    target.output = target._opened()
    target.replay()
    assert target.letters() == []
    assert len([message for part in messages_in(kafka, target.topic) for message in part]) == 52


IN_A_PROCESS = """
import pickle, sys
from pathlib import Path
from databus.testing._staged_writes import write_batch
from tests.kafka.support import output_of
server, folder, prefix, options, batches = pickle.loads(Path(sys.argv[1]).read_bytes())
output = output_of(server, folder, prefix, **options)
output.open()
for batch in batches:
    write_batch(output, batch)
"""


class Address:
    """Of a cluster, for another process."""

    def __init__(self, server):
        self.bootstrap = server.bootstrap


@REFUSERS
@pytest.mark.parametrize("point", ["kafka.before_commit:2", "kafka.after_commit:2"])
def test_a_task_that_is_killed_between_a_letter_and_the_end_loses_and_repeats_nothing(kafka, tmp_path, refuser, point):
    log = log_of("x", BAD, "y")
    log.begin().update(ORDERS, order(1), order(1, BAD))
    log.begin().update(ORDERS, order(2, BAD), order(2, "behind"))
    log.begin().update(ORDERS, order(3, "y"), order(3, "z"))
    target = Target(kafka, tmp_path, refuser)
    options = {**target.options, **target.limits}
    given = tmp_path / "given"
    given.write_bytes(pickle.dumps((Address(kafka), tmp_path, target.prefix, options, list(log.batches([3])))))
    command = [sys.executable, "-c", IN_A_PROCESS, str(given)]
    killed = subprocess.run(command, env={**os.environ, "DATABUS_CRASH_AT": point}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (4, 2) in target.pairs_of_letters()  # durable before the position is
    target.write(log, [3])
    held = [(2, 1), (4, 1), (4, 2), (5, 1), (5, 2)]
    assert target.pairs_of_letters() == held
    assert target.pairs() == [pair for pair in pairs_in(log) if pair not in held]
    target.mend()
    target.replay()
    assert target.pairs() == pairs_in(log)
    assert_in_order_per_key(target)


REPLAYED_IN_A_PROCESS = """
import pickle, sys
from pathlib import Path
from tests.kafka.support import output_of
server, folder, prefix, options = pickle.loads(Path(sys.argv[1]).read_bytes())
output = output_of(server, folder, prefix, **options)
for file in output.letters.files():
    output.letters.keep(file, output.replay(output.letters.read(file)))
"""


@pytest.mark.parametrize(("point", "is_there"), [("kafka.before_commit", False), ("kafka.after_commit", True)])
def test_a_replay_that_is_killed_is_repeated_whole_by_the_next(kafka, tmp_path, point, is_there):
    log = log_of(BAD, "x")
    log.begin().update(ORDERS, order(1, BAD), order(1, "behind"))
    target = Target(kafka, tmp_path)
    target.write(log)
    target.mend()
    given = tmp_path / "given"
    given.write_bytes(pickle.dumps((Address(kafka), tmp_path, target.prefix, target.options)))
    command = [sys.executable, "-c", REPLAYED_IN_A_PROCESS, str(given)]
    killed = subprocess.run(command, env={**os.environ, "DATABUS_CRASH_AT": point}, check=False)
    assert killed.returncode == -signal.SIGKILL
    held = [(1, 1), (3, 1), (3, 2)]
    assert target.pairs_of_letters() == held
    target.replay()
    assert target.letters() == []
    assert target.pairs() == sorted([*pairs_in(log), *(held if is_there else [])])


def test_letters_that_are_refused_again_stay_and_what_follows_of_their_keys_stays_behind_them(kafka, tmp_path):
    log = log_of(BAD, BAD)
    log.begin().update(ORDERS, order(1, BAD), order(1, "y"))
    log.begin().update(ORDERS, order(2, BAD), order(2, WORSE))
    log.begin().insert(ORDERS, order(3, WORSE))
    target = Target(kafka, tmp_path)
    target.write(log, [2])
    target.replay()
    assert target.pairs_of_letters() == pairs_in(log)
    assert target.rows() == []
    target.mend(10_000)
    target.replay()
    assert target.pairs_of_letters() == [(4, 1), (4, 2), (5, 1)]
    assert_in_order_per_key(target)


def test_a_replay_shuts_out_no_bucket(kafka, tmp_path, monkeypatch):
    log = log_of(BAD, "x", "y")
    target = Target(kafka, tmp_path)
    write_batch(target.output, log.batch(0, 2))
    write_batch(target.output, log.batch(1, 2))
    target.mend()
    begun = []
    with target.output.part_writer().open(bucket_of(target.output)) as bucket:
        target.replay()
        monkeypatch.setattr(Session, "close", begun.append)
        bucket.write(log.batch(2, 3))
    assert begun == []
    assert target.pairs() == pairs_in(log)


def bucket_of(output):
    from databus.flow import Bucket

    return Bucket(output.context.pipeline, output.context.output, "suite", 0, 1)


@REFUSERS
def test_too_many_letters_stop_the_output_until_they_are_fewer(kafka, tmp_path, refuser):
    target = Target(kafka, tmp_path, refuser, dead_letters_max=3)
    for _ in range(2):
        with pytest.raises(LimitExceeded, match=r"outputs\.topics: \d+ rows were refused.*dead_letters_max=3"):
            target.write(log_of(*[BAD] * 200))
        assert target.output.letters.count() == 4
    assert target.rows() == []


def test_retry_tries_again_until_it_is_taken(kafka, tmp_path):
    log = log_of("x", BAD)
    target = Target(kafka, tmp_path, on_error="retry")
    with pytest.raises(ServiceUnavailable, match=r"MSG_SIZE_TOO_LARGE.*It is tried again"):
        target.write(log)
    target.mend()
    target.write(log)
    assert target.pairs() == pairs_in(log)
    assert target.letters() == []


def test_a_control_that_is_refused_stops_the_output(kafka, tmp_path):
    log = log_of("x")
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    target = Target(kafka, tmp_path)
    set_topic(kafka, target.topic, **{"cleanup.policy": "compact"})
    with pytest.raises(UnrepresentableValue, match="`controls` a topic of their own"):
        target.write(log)
    assert target.letters() == []


def test_the_commands_see_letters_of_topics(kafka, tmp_path):
    target = Target(kafka, tmp_path)
    target.write(log_of(BAD, WORSE))
    given = {
        "type": "kafka",
        "from": "shop",
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "topic": f"{target.prefix}.{{table}}",
        "control_topic": f"{target.prefix}.control",
        "on_error": "dead_letter",
    }
    path = tmp_path / "databus.yml"
    path.write_text(json.dumps({"name": "shop", "inputs": {"shop": {"type": "mock"}}, "outputs": {"topics": given}}))
    assert "shop/main.orders 2 at 2/1" in databus("dead-letters", "show", str(path), "topics").stdout
    target.mend(10_000)
    (found,) = outputs_with_letters(load_pipeline(path))
    assert found.replay()[:2] == (1, 1)
    assert [file.count for file in found.files(["shop/main.orders"])] == [1]
    assert found.drop() == 1
    assert found.files() == []
    assert [row["id"] for row in target.rows()] == [1]


YEAR_2100 = 4_102_444_800_000


def test_a_mirror_parks_keys_of_messages_in_their_partitions_and_replays_them(kafka, tmp_path):
    """Messages of a timestamp that the target does not take: one, of which brokers do not say which, and several."""
    topics = Topics(kafka)
    name = topics.create(partitions=2, **{"message.timestamp.after.max.ms": 2**62})

    def produce(turn):
        for number in range(30):
            is_late = number % 10 == 3 if turn else number == 3
            when = {"timestamp": YEAR_2100} if is_late else {}
            key = None if number % 10 == 3 and number > 10 else b"key %d" % (number % 10)
            topics.write(name, [b"%d of %d" % (number, turn)], key=key, partition=number % 2, **when)

    groups = captured(topics, name, 30, 30, write=produce)
    prefix = new_prefix()
    output = mirror_of(kafka, tmp_path, prefix, on_error="dead_letter", buckets=2)
    write_groups(output, groups)
    topic, late = f"{prefix}.{name}", {b"3 of 0", b"3 of 1", b"13 of 1", b"23 of 1"}
    parts = [[message[1] for message in part] for part in told(kafka, topic)]
    wanted = [[message[1] for message in part if message[1] not in late] for part in told(kafka, name)]
    assert parts == wanted
    letters = [letter for file in output.letters.files() for letter in output.letters.read(file).letters]
    assert sorted(bool(letter.id) for letter in letters) == [False, False, True, True]
    set_topic(kafka, topic, **{"message.timestamp.after.max.ms": 2**62})
    for file in output.letters.files():
        output.letters.keep(file, output.replay(output.letters.read(file)))
    assert output.letters.count() == 0
    for part, original in zip(told(kafka, topic), told(kafka, name), strict=True):
        assert sorted(map(repr, part)) == sorted(map(repr, original))
        for key in {each[0] for each in original} - {None}:
            assert [message for message in part if message[0] == key] == [each for each in original if each[0] == key]


def test_letters_that_are_left_stop_an_output_that_keeps_none_any_more(kafka, tmp_path):
    """Nothing parks their keys: newer rows would be written, and a replay would write the older ones behind them."""
    target = Target(kafka, tmp_path)
    target.write(log_of(BAD))
    target.options["on_error"] = "retry"
    with pytest.raises(InputError, match="1 dead letters are left"):
        target._opened()
    target.mend()
    target.replay()
    target._opened()
