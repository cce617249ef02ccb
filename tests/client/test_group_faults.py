"""Four processes write one SQL table by fence, as docs/consumers.md shows, while they and their relays are killed, and
the network between them is cut.

Oracle: the source's own SELECT. That a change is applied once is counted by a trigger of the table, for each change has
a text of its own.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from databus.forks import Nursery
from databus.testing import RelayProcess, TcpProxy
from tests.client.conftest import wait_for
from tests.documents.pages import ROOT, blocks

LEASE_MS = 1_000
MEMBERS = 4


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery(["databus.client"])
    yield nursery
    nursery.close()


class Crew:
    """The relay, the source, the members and their table."""

    def __init__(self, folder, nursery, rng):
        self.folder, self.nursery, self.rng = folder, nursery, rng
        self.source, self.copy, self.script = folder / "shop.db", folder / "copy.db", folder / "share.py"
        (code,) = [each.text for each in blocks(ROOT / "docs" / "consumers.md") if each.words.get("file") == "share.py"]
        self.script.write_text(code)
        self.changes = 0
        with closing(sqlite3.connect(self.source, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, email TEXT)")
            for _ in range(40):
                self.insert(db)
        with closing(sqlite3.connect(self.copy, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            columns = "id INTEGER PRIMARY KEY, name TEXT, email TEXT, hash INTEGER, scn INTEGER, seq INTEGER"
            db.execute(f"CREATE TABLE customers ({columns})")
            db.execute("CREATE TABLE applied (id INTEGER, name TEXT)")
            counts = "INSERT INTO applied VALUES (NEW.id, NEW.name);"
            db.execute(f"CREATE TRIGGER counted AFTER INSERT ON customers BEGIN {counts} END")
        self.relay = RelayProcess(
            folder, {"shop": {"type": "sqlite", "path": str(self.source), "tables": ["main.*"]}},
            groups={"lease_ms": LEASE_MS, **self.groups()},
        )  # fmt: skip
        self.relay.start()
        self.addresses = self.relay.url
        self.prepare()
        self.members = [self.start(number) for number in range(MEMBERS)]

    def groups(self):
        return {}

    def prepare(self):
        """What else has to be there before the members are."""

    def start(self, number):
        arguments = ["-m", "tests.client.program", str(self.script), self.addresses, str(self.copy)]
        with (self.folder / f"member-{number}.log").open("ab") as log:
            forked = self.nursery.fork(arguments, log.fileno(), dict(os.environ))
            return forked or subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)

    def name(self):
        self.changes += 1
        return f"change {self.changes}"

    def insert(self, db):
        db.execute("INSERT OR IGNORE INTO customers VALUES (?, ?, 'a@b.c')", (self.rng.randrange(100), self.name()))

    def change(self, count):
        """Some transactions: inserts, updates, deletes, other keys."""
        with closing(sqlite3.connect(self.source, isolation_level=None, timeout=30)) as db:
            for _ in range(count):
                db.execute("BEGIN IMMEDIATE")
                for _ in range(self.rng.randint(1, 4)):
                    key = self.rng.randrange(100)
                    act = self.rng.choice(["insert", "update", "update", "delete", "move"])
                    if act == "insert":
                        self.insert(db)
                    elif act == "update":
                        db.execute("UPDATE customers SET name = ? WHERE id = ?", (self.name(), key))
                    elif act == "delete":
                        db.execute("DELETE FROM customers WHERE id = ?", (key,))
                    else:
                        to = self.rng.randrange(100)
                        db.execute(
                            "UPDATE OR IGNORE customers SET id = ?, name = ? WHERE id = ?", (to, self.name(), key)
                        )
                db.execute("COMMIT")
                time.sleep(0.003)  # so that faults come while changes do

    def rows(self, path):
        with closing(sqlite3.connect(path, timeout=60)) as db:
            return db.execute("SELECT id, name, email FROM customers ORDER BY id").fetchall()

    def catches_up(self, what):
        wait_for(lambda: self.rows(self.copy) == self.rows(self.source), f"the table, after {what}\n{self.logs()}")
        with closing(sqlite3.connect(self.copy, timeout=60)) as db:
            again = db.execute("SELECT id, name, count(*) FROM applied GROUP BY 1, 2 HAVING count(*) > 1").fetchall()
        assert again == [], what
        for number, member in enumerate(self.members):
            assert member.poll() is None, f"member {number} ended by itself after {what}\n{self.logs()}"

    def logs(self):
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self.folder.glob("member-*.log")))

    # faults

    def kill(self, number):
        self.members[number].send_signal(signal.SIGKILL)
        self.members[number].wait(30)
        self.change(20)
        self.members[number] = self.start(number)

    def stop(self, number):
        self.members[number].send_signal(signal.SIGSTOP)
        self.change(20)
        time.sleep(LEASE_MS * 1.2 / 1e3)  # beyond the lease: others take what it holds
        self.members[number].send_signal(signal.SIGCONT)

    def leave(self, number):
        self.members[number].send_signal(signal.SIGTERM)
        self.change(20)
        assert self.members[number].wait(30) == 0
        self.members[number] = self.start(number)

    def kill_relay(self, _):
        self.relay.kill()
        self.change(20)
        self.relay.start()

    def kill_two_and_the_relay(self, number):
        for each in (number, (number + 1) % MEMBERS):
            self.members[each].send_signal(signal.SIGKILL)
            self.members[each].wait(30)
        self.kill_relay(number)
        for each in (number, (number + 1) % MEMBERS):
            self.members[each] = self.start(each)

    def end(self):
        for member in self.members:
            if member.poll() is None:
                member.send_signal(signal.SIGKILL)
                member.send_signal(signal.SIGCONT)
                member.wait(30)
        self.relay.kill()


class ChainedCrew(Crew):
    """The members follow a copy of the relay, and at the relay itself where that is away. They reach the relay, which
    coordinates, through a network that may be cut.
    """

    def groups(self):
        self.network = TcpProxy("127.0.0.1", 1)  # the relay has no port yet
        self.network.__enter__()
        return {"coordinator": self.network.url, "coordinates": True}

    def prepare(self):
        self.network.turn_to("127.0.0.1", int(self.relay.url.rpartition(":")[2]))
        chained = {"type": "relay", "url": self.relay.url}
        groups = {"coordinator": self.network.url, "coordinates": False, "lease_ms": LEASE_MS}
        self.chained = RelayProcess(self.folder / "chained", {"shop": chained}, groups=groups)
        self.chained.start()
        self.addresses = f"{self.chained.url},{self.network.url}"

    def kill_chained(self, _):
        self.chained.kill()
        self.change(20)
        self.chained.start()

    def kill_both_relays(self, number):
        self.chained.kill()
        self.kill_relay(number)
        self.chained.start()

    def cut(self, _):
        self.network.cut()
        self.change(20)

    def silence(self, _):
        """A network in which nothing arrives any more, beyond the lease, and no connection ends."""
        self.network.is_silent = True
        self.change(20)
        time.sleep(LEASE_MS * 1.2 / 1e3)
        self.network.is_silent = False
        self.network.cut()

    def end(self):
        super().end()
        self.chained.kill()
        self.network.__exit__(None, None, None)


FAULTS = {
    Crew: (Crew.kill, Crew.stop, Crew.leave, Crew.kill_relay, Crew.kill_two_and_the_relay),
    ChainedCrew: (
        *(ChainedCrew.kill_chained, ChainedCrew.cut, ChainedCrew.silence, ChainedCrew.kill_both_relays),
        *(Crew.kill, Crew.stop, Crew.leave, Crew.kill_relay, Crew.kill_two_and_the_relay),
    ),
}


def rounds(crew_of, folder, nursery, seed, count):
    rng = random.Random(seed)
    crew, faults = crew_of(folder, nursery, rng), FAULTS[crew_of]
    try:
        crew.catches_up("the start")
        for number in range(count):
            fault = faults[number % len(faults)] if number < len(faults) else rng.choice(faults)
            crew.change(5)
            fault(crew, rng.randrange(MEMBERS))
            crew.change(5)
            crew.catches_up(f"round {number}: {fault.__name__}, seed {seed}")
    finally:
        crew.end()


CREWS = pytest.mark.parametrize(
    "crew_of", [Crew, pytest.param(ChainedCrew, marks=pytest.mark.nightly)], ids=["one relay", "a chained relay too"]
)


@CREWS
def test_the_table_is_the_source_whatever_is_killed_or_stopped(crew_of, tmp_path, nursery, seed):
    rounds(crew_of, tmp_path, nursery, seed, 10)


@CREWS
@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_the_table_is_the_source_after_many_faults(crew_of, tmp_path, nursery, seed):
    rounds(crew_of, tmp_path, nursery, seed, 200)
