"""One consumer that is far behind: relay process to client, every frame checked on both sides and opened as Arrow.

Beside it, in the same run and in turn: `sendfile` of the same files over the loopback, received into a reused buffer by
somebody who looks at nothing.
"""

import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure
from databus.link import RelayClient
from databus.testing import RelayProcess

BYTES = 5_000_000_000
ROW_BYTES = 254
ROWS_PER_TRANSACTION = 1_000
RUNS = 3
RECEIVE_BYTES = 1 << 20


def _send_files(paths: list[str], listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        for path in paths:
            with Path(path).open("rb") as file:
                offset, left = 0, os.fstat(file.fileno()).st_size
                while left:
                    count = os.sendfile(connection.fileno(), file.fileno(), offset, left)
                    offset, left = offset + count, left - count
        connection.close()


def _plain(port: int) -> float:
    """Bytes per second of sendfile to recv_into."""
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    total = 0
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while count := sock.recv_into(buffer):
            total += count
    return total / (time.perf_counter() - began)


def _catch_up(relay: RelayClient, rows_expected: int) -> tuple[float, float]:
    """Bytes and rows per second of a client that opens every frame."""
    end = relay.head("mock").published.pair
    size = rows = 0
    began = time.perf_counter()
    with relay.stream("mock", "beginning", to=end, follow=True) as stream:
        for groups in stream:
            for group in groups:
                size += group.commit.frame_bytes
                for frame in group.frames:
                    size += frame.header.frame_bytes
                    rows += frame.batch.num_rows
    seconds = time.perf_counter() - began
    if rows != rows_expected:
        raise AssertionError(f"{rows} rows came of {rows_expected}")
    return size / seconds, rows / seconds


def figures(scale: float = 1.0) -> Iterator[Figure]:
    transactions = max(20, int(BYTES * scale / (ROW_BYTES + 33) / ROWS_PER_TRANSACTION / 1.3))
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
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sender = multiprocessing.get_context("fork").Process(
                target=_send_files, args=(segments, listener), daemon=True
            )
            sender.start()
            plain, ours, rows = [], [], []
            rows_total = _rows_of(relay)
            for _ in range(RUNS):
                plain.append(_plain(listener.getsockname()[1]))
                bytes_per_s, rows_per_s = _catch_up(relay, rows_total)
                ours.append(bytes_per_s)
                rows.append(rows_per_s)
            sender.kill()
            sender.join()
    what = f"{size / 1e9:.1f} GB, {ROW_BYTES} B rows, groups of 4 MiB"
    yield Figure(
        f"catch up ({what})", statistics.median(ours) / 1e6, "MB/s", "sendfile", statistics.median(plain) / 1e6
    )
    yield Figure("the same in rows", statistics.median(rows), "rows/s")


def _rows_of(relay: RelayClient) -> int:
    return relay.range("mock", relay.position("mock", start="beginning"), bytes_max=1 << 50).rows


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
