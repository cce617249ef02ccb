"""Readers of one log at once, each of a range or a table of its own, as Spark's tasks are: what the relay's process
spends for a gigabyte, without TLS and with it.

A reader is a process that takes the bytes and looks at none of them, so that the relay is what is measured. With TLS it
decrypts them; that is its own processor time, shown beside.
"""

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.certificates import server_certificates

from benchmarks.figures import Figure
from databus.link import Access, RelayClient
from databus.testing import RelayProcess

BYTES = 2_000_000_000
CAPTURE_S_MAX = 300
ROW_BYTES = 254
ROWS_PER_TRANSACTION = 1_000
READERS = (1, 4, 16)
TABLES = 16
RUNS = 3
RECEIVE_BYTES = 1 << 20
_TICKS = os.sysconf("SC_CLK_TCK")


def _spent_s(pid: int) -> float:
    """User and system time of a process and its threads."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


def _read(url: str, access: Access, ask: Mapping[str, Any], told: Any) -> None:
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    client, size = RelayClient(url, access=access), 0
    with client.stream("mock", follow=True, **ask) as stream:
        while count := stream.read_into(buffer):
            size += count
    used = resource.getrusage(resource.RUSAGE_SELF)
    told.put((size, used.ru_utime + used.ru_stime))


def _by_range(client: RelayClient, count: int) -> list[dict[str, Any]]:
    """What each reader asks for: a range of its own."""
    beginning = client.position("mock", start="beginning")
    found = client.range("mock", beginning, bytes_max=1 << 50, partitions=count)
    ends = [*found.splits, found.position]
    starts = [beginning, *found.splits]
    return [{"start": start, "to": end.pair} for start, end in zip(starts, ends, strict=True)]


def _by_table(client: RelayClient, count: int) -> list[dict[str, Any]]:
    """A table of its own, of the whole log."""
    beginning, end = client.position("mock", start="beginning"), client.head("mock").published.pair
    return [{"start": beginning, "to": end, "sources": [each.id]} for each in client.sources()[:count]]


def _measure(process: RelayProcess, access: Access, asks: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Bytes a second, and seconds of processor time a gigabyte: of the relay, and of all readers."""
    context = multiprocessing.get_context("fork")
    told: Any = context.SimpleQueue()
    readers = [context.Process(target=_read, args=(process.url, access, ask, told)) for ask in asks]
    before, began = _spent_s(process.pid), time.perf_counter()
    for each in readers:
        each.start()
    results = [told.get() for _ in readers]
    seconds, spent = time.perf_counter() - began, _spent_s(process.pid) - before
    for each in readers:
        each.join()
    size = sum(each[0] for each in results)
    return size / seconds, spent / size * 1e9, sum(each[1] for each in results) / size * 1e9


def _figures(process: RelayProcess, access: Access, asks: list[dict[str, Any]], what: str) -> Iterator[Figure]:
    runs = [_measure(process, access, asks) for _ in range(RUNS)]
    rate, relay_s, reader_s = sorted(runs)[len(runs) // 2]
    yield Figure(what, rate / 1e6, "MB/s")
    yield Figure(f"{what}: processor time of the relay", relay_s * 1e3, "ms/GB")
    yield Figure(f"{what}: processor time of the readers", reader_s * 1e3, "ms/GB")


def _captured(process: RelayProcess, access: Access, transactions: int) -> RelayClient:
    process.url = process.url.replace("127.0.0.1", "localhost")
    client = RelayClient(process.url, access=access)
    deadline = time.monotonic() + CAPTURE_S_MAX
    while not client.physicals()["mock"] or client.head("mock").published.scn < transactions:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not captured within {CAPTURE_S_MAX} s")
        time.sleep(0.1)  # a relay does not tell when a source has no more
    _measure(process, access, _by_range(client, 1))  # checksums are looked at once
    return client


def figures(scale: float = 1.0) -> Iterator[Figure]:
    transactions = max(40, int(BYTES * scale / (ROW_BYTES + 33) / ROWS_PER_TRANSACTION / 1.3))
    mock: dict[str, Any] = {
        "type": "mock",
        "row_bytes": ROW_BYTES,
        "rows_per_transaction": ROWS_PER_TRANSACTION,
        "transactions_total": transactions,
    }
    columns = {"id": "int64", "at": "timestamptz", "payload": "string"}
    tables = {f"main.t{number:02}": {"columns": columns} for number in range(TABLES)}
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        made = server_certificates(Path(name) / "tls")
        tls = {"certificate_file": str(made.certificate), "key_file": str(made.key)}
        for word, options, access in (
            ("without TLS", {}, Access()),
            ("with TLS", {"tls": tls}, Access(ca_file=made.ca)),
        ):
            with RelayProcess(Path(name) / "relay", {"mock": mock}, **options) as process:
                client = _captured(process, access, transactions)
                for count in READERS:
                    what = f"{count} readers, each of a range" if count > 1 else "one reader"
                    yield from _figures(process, access, _by_range(client, count), f"{what}, {word}")
        with RelayProcess(Path(name) / "tables", {"mock": {**mock, "schemas": tables}}) as process:
            client = _captured(process, Access(), transactions)
            yield from _figures(process, Access(), _by_table(client, TABLES), f"{TABLES} readers, each of a table")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
