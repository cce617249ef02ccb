"""Consumers that are far behind, one and many: relay process to client, every frame checked on both sides and opened as
Arrow.

Beside it, in the same run and in turn: `sendfile` of the same files over the loopback to as many, received into reused
buffers by somebody who looks at nothing. Many are shared by a few processes, a thread each; all bytes that arrived, by
the time until the last had them.
"""

import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.figures import Figure
from databus.link import RelayClient
from databus.testing import RelayProcess

BYTES = 5_000_000_000
ROW_BYTES = 254
ROWS_PER_TRANSACTION = 1_000
RUNS = 3
CROWDS = ((1, 0.45), (10, 0.45), (200, 0.35))
"""Consumers, and the part of sendfile that all of them together are to reach."""

CROWD_PROCESSES = 2
RECEIVE_BYTES = 1 << 20


def _send_files(paths: list[str], listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_send, args=(paths, connection), daemon=True).start()


def _send(paths: list[str], connection: socket.socket) -> None:
    for path in paths:
        with Path(path).open("rb") as file:
            offset, left = 0, os.fstat(file.fileno()).st_size
            while left:
                count = os.sendfile(connection.fileno(), file.fileno(), offset, left)
                offset, left = offset + count, left - count
    connection.close()


def _plain(port: int) -> int:
    """Bytes of sendfile to recv_into."""
    buffer, total = memoryview(bytearray(RECEIVE_BYTES)), 0
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while count := sock.recv_into(buffer):
            total += count
    return total


def _catch_up(url: str, rows_expected: int) -> int:
    """Bytes of a client that opens every frame."""
    relay = RelayClient(url)
    end = relay.head("mock").published.pair
    size = rows = 0
    with relay.stream("mock", "beginning", to=end, follow=True) as stream:
        for groups in stream:
            for group in groups:
                size += group.commit.frame_bytes
                for frame in group.frames:
                    size += frame.header.frame_bytes
                    rows += frame.batch.num_rows
    if rows != rows_expected:
        raise AssertionError(f"{rows} rows came of {rows_expected}")
    return size


def _together(read: Callable[[], int], count: int) -> float:
    """Bytes per second of so many that read at once."""
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()

    def share(threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            answers.put(sum(pool.map(lambda _: read(), range(threads))))

    shares = [len(range(first, count, CROWD_PROCESSES)) for first in range(min(CROWD_PROCESSES, count))]
    processes = [fork.Process(target=share, args=(threads,), daemon=True) for threads in shares]
    began = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    return sum(answers.get() for process in processes if process.exitcode == 0) / seconds


def figures(scale: float = 1.0) -> Iterator[Figure]:
    for count, aim in CROWDS:
        yield from _figures_of(count, aim, BYTES * scale / count)


def _figures_of(count: int, aim: float, bytes_each: float) -> Iterator[Figure]:
    transactions = max(20, int(bytes_each / (ROW_BYTES + 33) / ROWS_PER_TRANSACTION / 1.3))
    mock = {
        "type": "mock",
        "row_bytes": ROW_BYTES,
        "rows_per_transaction": ROWS_PER_TRANSACTION,
        "transactions_total": transactions,
    }
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name,
        RelayProcess(Path(name), {"mock": mock}) as process,
    ):
        relay = RelayClient(process.url)
        while relay.head("mock").published.scn < transactions:
            time.sleep(0.1)
        files = sorted(path for path in Path(name).glob("relay/mock/**/*") if path.is_file())
        segments = [str(path) for path in files if path.stat().st_size > 1 << 20]
        size = sum(Path(path).stat().st_size for path in segments)
        rows = relay.range("mock", relay.position("mock", start="beginning"), bytes_max=1 << 50).rows
        with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
            sender = multiprocessing.get_context("fork").Process(
                target=_send_files, args=(segments, listener), daemon=True
            )
            sender.start()
            port = listener.getsockname()[1]
            plain, ours = [], []
            for _ in range(RUNS):
                plain.append(_together(lambda: _plain(port), count))
                ours.append(_together(lambda: _catch_up(process.url, rows), count))
            sender.kill()
            sender.join()
    who = "one consumer" if count == 1 else f"{count} consumers together"
    what = f"{who}, {size / 1e6:,.0f} MB each, {ROW_BYTES} B rows, groups of 4 MiB"
    best, peer = statistics.median(ours), statistics.median(plain)
    yield Figure(f"catch up: {what}", best / 1e6, "MB/s", f"sendfile; at least {aim}", peer / 1e6)
    yield Figure(f"the same in rows: {who}", best / size * rows, "rows/s")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
