"""Durable consumers and groups: what saves cost the relay, and how fast partitions move. The relay's own side: members
here are connections that call as members do, and handle nothing.

The processor time is that of the relay's whole process, less what it takes while nobody calls, of one core.

Beside it, a group of Kafka's with its default settings: four consumers in processes of their own, of which one leaves
and one is killed, until the others have had a message of every partition that was sent after that.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from benchmarks.figures import Figure
from databus.testing import RelayProcess
from databus.testing.servers import Kafka, ServerMissing

NAMES, SAVES_S = 1_000, 10.0
MEMBERS, PARTITIONS = 10, 900
LEASE_MS = 3_000
KAFKA_MEMBERS, KAFKA_PARTITIONS, KAFKA_S_MAX = 4, 8, 120.0
_KAFKA_MEMBER = """
import signal, sys
from confluent_kafka import Consumer
consumer, ended = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "bench"}), []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
consumer.subscribe(["bench"])
while not ended:
    message = consumer.poll(0.1)
    if message is not None and message.error() is None:
        print(message.partition(), message.value().decode(), flush=True)
consumer.close()
"""


class _Member:
    """One connection, one member of one group."""

    def __init__(self, url: str, name: str, partitions: int, wait_ms: int = 0) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._name, self._partitions, self._wait_ms = name, partitions, wait_ms
        self._uuid, self._call = str(uuid.uuid4()), 0
        self.holds: dict[str, int] = {}
        self.places: dict[str, dict[str, Any]] = {}

    async def connect(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        return self

    async def call(self, *, save: int | None = None, **fields: Any) -> Mapping[str, Any]:
        self._call += 1
        holds: dict[str, Any] = {number: {"fence": fence} for number, fence in self.holds.items()}
        for number, each in holds.items():
            if save is not None:
                place = {**self.places[number], "scn": save, "txid": f"t{save}"}
                each["checkpoint"] = {"v": 1, "sources": {"mock": place}}
        body = {
            "member": self._uuid, "call": self._call, "partitions": self._partitions, "holds": holds,
            "wait_ms": self._wait_ms, **fields,
        }  # fmt: skip
        text = json.dumps(body).encode()
        head = f"POST /groups/{self._name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
        self._writer.write(head.encode() + text)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        told: Mapping[str, Any] = json.loads(await self._reader.readexactly(length))
        for number, taken in told["take"].items():
            self.holds[number] = taken["fence"]
            self.places[number] = taken["checkpoint"]["sources"]["mock"]
        for number in told["give_up"]:
            self.holds.pop(number, None)
        return told

    async def stay(self, ended: asyncio.Event) -> None:
        """Call as a member does that only waits for what changes."""
        while not ended.is_set():
            await self.call()


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def _saves(relay: RelayProcess, names: int, seconds: float) -> tuple[float, float]:
    """Parts of a core while every name saves each second, and saves that were answered a second."""
    members = [_Member(relay.url, f"name-{i}", 1) for i in range(names)]
    for member in members:
        await (await member.connect()).call(start="beginning")
    idle_s = await _cpu_of(relay, 2.0)
    saved = 0

    async def save(member: _Member, offset_s: float) -> None:
        nonlocal saved
        await asyncio.sleep(offset_s)
        scn, at = 0, asyncio.get_running_loop().time()
        while at < end:
            scn += 1
            await member.call(save=scn)
            saved += 1
            at += 1.0
            await asyncio.sleep(max(at - asyncio.get_running_loop().time(), 0.0))

    before, began = _cpu_s(relay.pid), time.monotonic()
    end = asyncio.get_running_loop().time() + seconds
    await asyncio.gather(*(save(member, i / names) for i, member in enumerate(members)))
    took = time.monotonic() - began
    return (_cpu_s(relay.pid) - before) / took - idle_s, saved / took


async def _cpu_of(relay: RelayProcess, seconds: float) -> float:
    before = _cpu_s(relay.pid)
    await asyncio.sleep(seconds)
    return (_cpu_s(relay.pid) - before) / seconds


async def _taken(relay: RelayProcess, members: int, partitions: int) -> tuple[float, float, float]:
    """Seconds until all partitions are held evenly; after one has left; after one has gone in silence."""
    ended = asyncio.Event()
    there = [await _Member(relay.url, "many", partitions, 1_000).connect() for _ in range(members)]
    began = time.monotonic()
    works = [asyncio.ensure_future(member.stay(ended)) for member in there]

    async def until_even(count: int) -> float:
        while sorted(len(member.holds) for member in there)[-count:] != _even(partitions, count):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return time.monotonic()

    took_s = await until_even(members) - began
    works.pop().cancel()
    last = await there.pop().connect()  # again, as the first connection may wait for an answer
    began = time.monotonic()
    await last.call(leave=True, wait_ms=0)
    left_s = await until_even(members - 1) - began
    works.pop().cancel()
    there.pop()
    began = time.monotonic()
    gone_s = await until_even(members - 2) - began
    ended.set()
    await asyncio.gather(*works, return_exceptions=True)
    return took_s, left_s, gone_s


def _even(partitions: int, members: int) -> list[int]:
    share, over = divmod(partitions, members)
    return [share] * (members - over) + [share + 1] * over


class _KafkaGroup:
    """Four members, and somebody who sends a number to every partition twenty times a second."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its types lack it

        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("bench", KAFKA_PARTITIONS, 1)])["bench"].result(30)
        self._producer, self._sent, self._is_over = Producer({"bootstrap.servers": bootstrap}), 0, threading.Event()
        self._had = [0] * KAFKA_PARTITIONS
        self._at_work: set[int] = set()
        command = [sys.executable, "-c", _KAFKA_MEMBER, bootstrap]
        self.members = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(KAFKA_MEMBERS)
        ]
        threading.Thread(target=self._send, daemon=True).start()
        for member in self.members:
            threading.Thread(target=self._listen, args=[member], daemon=True).start()

    def _send(self) -> None:
        while not self._is_over.wait(0.05):
            self._sent += 1
            for partition in range(KAFKA_PARTITIONS):
                self._producer.produce("bench", str(self._sent), partition=partition)
            self._producer.poll(0)

    def _listen(self, member: "subprocess.Popen[str]") -> None:
        for line in member.stdout or ():
            partition, number = map(int, line.split())
            self._had[partition] = max(self._had[partition], number)
            self._at_work.add(member.pid)

    def flows(self, after: int = 0) -> bool:
        """Whether something that was sent later has come of every partition, in time."""
        began = time.monotonic()
        while min(self._had) <= after and time.monotonic() - began < KAFKA_S_MAX:
            time.sleep(0.02)
        return min(self._had) > after

    def flows_without_s(self, number: int, how: signal.Signals) -> float:
        """Seconds from a member's signal until the others have something new of every partition. Before, all of them
        have some.
        """
        self._at_work.clear()
        while any(member.poll() is None and member.pid not in self._at_work for member in self.members):
            time.sleep(0.02)
        began = time.monotonic()
        self.members[number].send_signal(how)
        self.members[number].wait(KAFKA_S_MAX)
        return time.monotonic() - began if self.flows(self._sent) else float("inf")

    def end(self) -> None:
        self._is_over.set()
        for member in self.members:
            member.kill()
            member.wait(30)


def figures(scale: float = 1.0) -> Iterator[Figure]:
    names, seconds = max(50, round(NAMES * scale)), max(3.0, SAVES_S * scale)
    with _relay(60_000) as relay:  # all names are made before the first saves
        cores, rate = asyncio.run(_saves(relay, names, seconds))
        yield Figure(f"{names:,} names that save each second: saves answered", rate, "a second")
        yield Figure(f"{names:,} names that save each second: relay CPU", cores * 100, "% of a core")
    with _relay(LEASE_MS) as relay:
        took_s, left_s, gone_s = asyncio.run(_taken(relay, MEMBERS, PARTITIONS))
        yield Figure(f"{MEMBERS} members take {PARTITIONS} partitions", took_s, "s", "at most", 3.0)
        yield Figure("an orderly leave until the others have taken them", left_s, "s", "at most", 0.5)
        yield Figure(
            "a member gone in silence until the others have taken them", gone_s, "s", "a lease", LEASE_MS / 1e3
        )
    yield from _kafka(LEASE_MS / 1e3)


def _kafka(lease_s: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        server = Kafka(Path(folder) / "server")
        try:
            server.prepare()
        except ServerMissing:
            return
        with server:
            group = _KafkaGroup(server.bootstrap)
            try:
                group.flows()
                left_s = group.flows_without_s(0, signal.SIGTERM)
                killed_s = group.flows_without_s(1, signal.SIGKILL)
            finally:
                group.end()
    yield Figure("Kafka's group, default settings: an orderly leave until all partitions flow", left_s, "s")
    yield Figure("Kafka's group: kill -9 of a member until all partitions flow", killed_s, "s", "our lease", lease_s)


@contextmanager
def _relay(lease_ms: int) -> Iterator[RelayProcess]:
    source = {"mock": {"type": "mock", "transactions_total": 10}}
    with (
        tempfile.TemporaryDirectory() as folder,
        RelayProcess(Path(folder), source, groups={"lease_ms": lease_ms}, serve={"connections_max": 4_000}) as relay,
    ):
        yield relay


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
