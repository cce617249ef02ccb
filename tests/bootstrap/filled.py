"""Stores that are filled without Spark: the outputs of the service's own pipeline, given what the relay has."""

import json
from contextlib import contextmanager
from pathlib import Path

from databus.bootstrap import BootstrapServer, keyless_tables, load_bootstrap
from databus.bootstrap._noting import Noting, Stand, definitions_of
from databus.core import SourceCheckpoint
from databus.flow import decode_groups
from databus.link import RangeReader, RelayClient, any_of
from databus.pipeline import load_pipeline
from databus.relay import Relay, parse_relay
from databus.relay._config import BootstrapAt
from databus.stores import NoteFolder
from databus.testing._staged_writes import write_batch
from databus.testing.shop import connect
from tests.client.conftest import wait_for

PHYSICAL = "shop"
SMALL_LOG = {"segment_bytes_max": 4096, "fsync_interval_ms": 1}
KEPT_BYTES = 16_000


class Shop:
    """A SQLite database, a relay of it with a small log, and a bootstrap service."""

    def __init__(self, folder: Path, statements: str, storage=None, **options) -> None:
        """options: of the service. storage: of the store where its path is."""
        self._options, self._storage = options, storage or {}
        self.folder = folder
        self._noting = None
        self.keeps_open, self.kept_open = False, {}  # whether one run fills the stores, batch by batch
        self.written = {"log": SourceCheckpoint(), "state": SourceCheckpoint()}
        sources = {PHYSICAL: self.database(statements)}
        self._relay_file = {"listen": "127.0.0.1:0", "folder": "relay", "sources": sources, "log": SMALL_LOG}

    def database(self, statements):
        """Make it; returns the source of it in the relay's file."""
        self.db = connect(self.folder / "shop.db")
        self.db.executescript(statements)
        return {"type": "sqlite", "path": "shop.db"}

    @contextmanager
    def captured_by_a_relay(self):
        """The database with its relay, which names no service yet."""
        with Relay(parse_relay(self._relay_file, folder=self.folder)) as relay:
            self.relay, self.url, self.client = relay, relay.url, RelayClient(relay.url)
            path = self.folder / "bootstrap.yml"
            options = json.dumps({"path": "lake", "listen": "127.0.0.1:0", "merge_ms": 0, **self._options})
            storage = json.dumps(self._storage)
            path.write_text(f"relay: {{url: '{relay.url}'}}\nbootstrap: {options}\nstorage: {storage}\n")
            self.config = load_bootstrap(path)
            yield self

    @contextmanager
    def running(self):
        """With a server of stores that `fill` fills."""
        with self.captured_by_a_relay(), BootstrapServer(self.config) as server:
            self.name_service(server.url)
            yield self

    def name_service(self, url):
        """Have the relay name a service from now on."""
        self.service_url = url
        self.relay.config.bootstrap = BootstrapAt(url=url)

    def execute(self, *statements):
        self.db.execute("BEGIN IMMEDIATE")
        for each in statements:
            self.db.execute(each)
        self.db.execute("COMMIT")

    def select(self, query):
        return sorted(self.db.execute(query).fetchall(), key=repr)

    def captured(self):
        """Wait until the relay has all, and is at rest; returns its end."""

        def is_at_rest():
            self.state = state = self.client.states(look=True)[0]
            published = self.client.head(PHYSICAL).published
            return state["lagIsNew"] and not state["lagMs"] and not published.snapshots and published.scn > 0

        wait_for(is_at_rest, "the relay to have all")
        return self.client.head(PHYSICAL).published

    def fill(self, *outputs):
        """Write what the relay has into the stores, and note a state."""
        end = self.captured()
        pipeline = load_pipeline(self.config.write_pipeline(keyless_tables(self.config))).config
        for name in outputs or ("log", "state"):
            if self.written[name].pair >= end.pair:
                continue
            node = pipeline.nodes[f"outputs.{name}"]
            output = self.kept_open.get(name) or node.plugin(node.config, pipeline.context_of(name))
            known = self.client.sources()
            keyed = [each.table for each in known if each.key]
            sources = tuple(keyed) if name == "state" else None
            reader = RangeReader(self.client, PHYSICAL, sources, any_of(sources, PHYSICAL))
            start, until = self.written[name], end.pair
            pieces = ((groups, stream.log) for groups, stream in reader.groups(start, until))
            for batch in decode_groups(pieces, PHYSICAL, start.pair, until, self.client.table_of, 1 << 20):
                write_batch(output, batch)
            if self.keeps_open:
                self.kept_open[name] = output
            else:
                output.close()
            self.written[name] = end
        self.note()

    def note(self):
        if self._noting is None:
            self._noting = Noting(self.config, PHYSICAL)
        return self._noting.look(*self.noted())

    def noted(self):
        definitions, log = definitions_of(self.client, PHYSICAL), self.client.head(PHYSICAL).log
        return self.written["log"], Stand(self.written["state"]), definitions, log

    def states(self):
        return NoteFolder(self.config.root, PHYSICAL).states()

    def head(self):
        return NoteFolder(self.config.root, PHYSICAL).head()

    def forget(self):
        """Have the relay lose all that the stores had so far; they keep up."""
        self.fill()
        log = self.relay.captures[PHYSICAL].log
        log.config = log.config.model_copy(update={"retention_bytes_max": KEPT_BYTES})
        had = self.written["state"].pair
        while self.client.head(PHYSICAL).oldest.pair <= had:
            for _ in range(2):  # less than is kept, so that nothing goes that the stores lack, however slow they are
                self.execute("UPDATE ballast SET n = n + 1")
            self.fill()
        log.config = log.config.model_copy(update={"retention_bytes_max": 1 << 30})
