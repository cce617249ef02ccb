"""What a reader finds of transactions in Kafka: it knows Debezium's fields and nothing of how they were written."""

import json
from collections import defaultdict

from tests.kafka.support import messages_in


def as_json(data):
    return None if data is None else json.loads(data)


def changes_in(server, topics, read=as_json):
    """The envelopes of topics."""
    found = [read(message.value()) for topic in topics for part in messages_in(server, topic) for message in part]
    return [each for each in found if each is not None]


def counts_of_whole_transactions(server, topics, transaction_topic, *, read=as_json, read_key=as_json):
    """By transaction, its changes by table, and the changes that have no place. Looks that all places are taken, each
    once, in the order of the log, and that one begin and then one end say so.
    """
    changes, without = defaultdict(list), []
    for change in changes_in(server, topics, read):
        block = change["transaction"]
        if block is None:
            without.append(change)
        else:
            changes[block["id"]].append(change)
    marks = defaultdict(list)
    for part in messages_in(server, transaction_topic):
        for message in part:
            value = read(message.value())
            assert read_key(message.key()) == {"id": value["id"]}
            marks[value["id"]].append(value)
    assert set(marks) == set(changes)
    found = {}
    for name, mine in changes.items():
        mine.sort(key=lambda change: change["transaction"]["total_order"])
        assert [each["transaction"]["total_order"] for each in mine] == [*range(1, len(mine) + 1)], name
        places = [tuple(map(int, json.loads(each["source"]["sequence"]))) for each in mine]
        assert places == sorted(places), name
        assert {each["source"]["gtid"] for each in mine} == {name}
        tables = defaultdict(list)
        for each in mine:
            source = each["source"]
            tables[f"{source['db']}.{source['table']}"].append(each["transaction"]["data_collection_order"])
        assert {table: [*range(1, len(orders) + 1)] for table, orders in tables.items()} == tables, name
        begin, end = marks[name]
        ts_ms = {each["source"]["ts_ms"] for each in mine}
        assert begin == {
            "status": "BEGIN",
            "id": name,
            "event_count": None,
            "data_collections": None,
            "ts_ms": end["ts_ms"],
        }
        assert {end["ts_ms"]} == ts_ms
        assert (end["status"], end["id"], end["event_count"]) == ("END", name, len(mine))
        told = {each["data_collection"]: each["event_count"] for each in end["data_collections"]}
        assert len(told) == len(end["data_collections"])
        assert told == {table: len(orders) for table, orders in tables.items()}, name
        found[name] = told
    return found, without
