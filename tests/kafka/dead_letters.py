"""Topics that refuse rows, and an output that keeps these as dead letters, for tests."""

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from databus.pipeline import TableControl
from databus.schema import Column, TableSchema
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import order

LIMIT = 4_000
BAD = "bad" * 2_000
WORSE = "worse" * 4_000
EVENTS = TableSchema("main.events", (Column("id", "int64"), Column("note", "string")))
BY_CLIENT = {"kafka": {"message.max.bytes": LIMIT}}
REFUSERS = pytest.mark.parametrize("refuser", ["client", "broker"])


def set_topic(server, topic, **config):
    """Make a topic, or change one."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, 3, 1, config=config)])[topic].result(30)
        return
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


class Target:
    """An output with dead letters into topics that take messages of up to `LIMIT` bytes, until `mend` is called."""

    def __init__(self, server, folder, refuser="broker", **options):
        self.server, self.folder, self.refuser = server, folder, refuser
        self.prefix = new_prefix()
        self.options = {"buckets": 1, "on_error": "dead_letter", **options}
        if refuser == "broker":
            set_topic(server, self.topic, **{"max.message.bytes": LIMIT})
        self.limits = BY_CLIENT if refuser == "client" else {}
        self.output = self._opened()

    @property
    def topic(self):
        return f"{self.prefix}.orders"

    def _opened(self):
        kafka = {**self.options.get("kafka", {}), **self.limits.get("kafka", {})}
        output = output_of(self.server, self.folder, self.prefix, **{**self.options, "kafka": kafka})
        output.open()
        return output

    def mend(self, bytes_max=1_000_000):
        if self.refuser == "broker":
            set_topic(self.server, self.topic, **{"max.message.bytes": bytes_max})
            return
        self.limits = {"kafka": {"message.max.bytes": bytes_max}}
        self.output = self._opened()

    def write(self, log, cuts=()):
        for batch in log.batches(cuts):
            write_batch(self.output, batch)

    def letters(self):
        return [letter for file in self.output.letters.files() for letter in self.output.letters.read(file).letters]

    def pairs_of_letters(self):
        return sorted(letter.pair for letter in self.letters())

    def replay(self):
        for file in self.output.letters.files():
            self.output.letters.keep(file, self.output.replay(self.output.letters.read(file)))

    def rows(self):
        return [row for part in rows_in(self.server, self.topic) for row in part]

    def pairs(self):
        return sorted(map(pair_of, self.rows()))


def pair_of(row):
    return row["_commit_version"], row["_seq"]


def pairs_in(log):
    return sorted(entry.pair for entry in log.entries if not isinstance(entry, TableControl))


def log_of(*notes):
    log = ChangeLog()
    for number, note in enumerate(notes, 1):
        log.begin().insert(ORDERS, order(number, note))
    return log


def assert_in_order_per_key(target):
    for part in rows_in(target.server, target.topic):
        last = {}
        for row in part:
            assert last.get(row["id"], (0, 0)) <= pair_of(row)
            last[row["id"]] = pair_of(row)
