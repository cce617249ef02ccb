"""The relay as a process: start until ready with a long log, CPU while nothing happens, memory while it serves.

The log is made of real groups of 254-byte rows that are numbered anew each time they are appended; their bodies stay
the same, which nobody who does not decode them can tell.

    python -m benchmarks.relay
"""

import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, median_of
from databus.log import Log, LogConfig, Resume
from databus.sources.mock import MockConfig, MockSource
from databus.testing import RelayProcess
from databus.wire import COMMIT, EncodedGroup, encode_group, pack_header, unpack_header

LOG_BYTES = 20_000_000_000
SERVED_BYTES = 5_000_000_000
IDLE_SECONDS, IDLE_SECONDS_MIN = 20, 3.0
STARTS = 5
START_S_MAX = 1.0
IDLE_PERCENT_MAX = 1.0
ANON_MB_MAX = 300.0
SAMPLE_S = 0.02
MOCK: dict[str, Any] = {"type": "mock", "rows_per_transaction": 1_000, "group_transactions_max": 4}


def frames_of(encoded: EncodedGroup) -> list[tuple[dict[str, Any], memoryview]]:
    """The headers of a group's frames, and their bodies; the commit frame is the last."""
    whole = memoryview(b"".join(encoded.buffers))
    found, at = [], 0
    while at < len(whole):
        header = unpack_header(whole[at:], "group")
        found.append((header._asdict(), whole[at + header.header_bytes : at + header.frame_bytes]))
        at += header.frame_bytes
    return found


def numbered(
    encoded: EncodedGroup, frames: list[tuple[dict[str, Any], memoryview]], scn: int, count: int, at_us: int = 0
) -> EncodedGroup:
    """The same group as transactions `scn .. scn + count - 1`. at_us: when it was committed and captured, instead."""
    commit = replace(encoded.commit, scn=scn + count - 1, position={**encoded.commit.position, "n": scn + count - 1})
    if at_us:
        commit = replace(commit, commit_us=at_us)
    buffers: list[Any] = []
    for header, body in frames:
        named = {name: header[name] for name in ("flags", "body_crc", "rows", "body_bytes", "source_id")}
        named |= {name: header[name] for name in ("schema_version", "fingerprint")}
        named |= {name: at_us or header[name] for name in ("commit_us", "capture_us")}
        position = commit.position_bytes() if header["kind"] == COMMIT else b""
        last = (commit.scn, header["last_seq"])
        buffers.append(
            pack_header(header["kind"], first=(scn, header["first_seq"]), last=last, position=position, **named)
        )
        if len(body):
            buffers.append(body)
    size = sum(memoryview(buffer).nbytes for buffer in buffers)
    first, commit_bytes = (scn, encoded.first[1]), len(buffers[-1])  # the commit frame, which has no body here
    return replace(
        encoded, buffers=tuple(buffers), bytes_total=size, commit_bytes=commit_bytes, commit=commit, first=first
    )


def _make_log(folder: Path, bytes_total: int) -> int:
    """A log of so many bytes; returns how many transactions it holds."""
    source = MockSource("mock", MockConfig.model_validate(MOCK))
    with Log.open(
        folder, physical="mock", identity=source.identify(), config=LogConfig(retention_bytes_max=1 << 50)
    ) as log:
        for table in source.tables():
            log.schemas.number_of(table)
        source.start(Resume())
        group = source.poll(1_000)
        if group is None:
            raise RuntimeError("the mock source had nothing")
        encoded = encode_group(group, log.schemas, time.time_ns() // 1000)
        frames, count = frames_of(encoded), group.commit.scn
        scn = written = 0
        while written < bytes_total:
            again = numbered(encoded, frames, scn + 1, count)
            log.append_encoded(again)
            scn, written = scn + count, written + again.bytes_total
    return scn


def _start_s(relay: RelayProcess) -> float:
    began = time.perf_counter()
    relay.start()
    seconds = time.perf_counter() - began
    relay.stop()
    return seconds


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _idle_percent(pid: int, seconds: float) -> float:
    before = _cpu_seconds(pid)
    time.sleep(seconds)
    return 100 * (_cpu_seconds(pid) - before) / seconds


def _anon_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("RssAnon"))


class _Watch(threading.Thread):
    """The most anonymous memory that a process was seen to have."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._ended = threading.Event()
        self.most_mb = 0.0

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.most_mb = max(self.most_mb, _anon_mb(self._pid))

    def end(self) -> float:
        self._ended.set()
        self.join()
        return max(self.most_mb, _anon_mb(self._pid))


def _receive(url: str, bytes_max: int) -> int:
    """Read frames from the beginning on and throw them away."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    buffer = memoryview(bytearray(1 << 20))
    received = 0
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"GET /stream?output=frames&wait_ms=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while received < bytes_max and (count := sock.recv_into(buffer)):
            received += count
    return received


def figures(scale: float = 1.0) -> Iterator[Figure]:
    log_bytes, served_bytes = int(LOG_BYTES * scale), int(SERVED_BYTES * scale)
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        total = _make_log(folder / "relay" / "mock", log_bytes)
        options = {"log": {"retention_bytes_max": 1 << 50}}
        relay = RelayProcess(folder, {"mock": {**MOCK, "transactions_total": total}}, **options)
        seconds = median_of(STARTS, lambda: _start_s(relay))
        yield Figure(f"start until ready, a log of {log_bytes / 1e9:.1f} GB", seconds, "s", "at most", START_S_MAX)
        with relay:
            idle = _idle_percent(relay.pid, max(IDLE_SECONDS_MIN, IDLE_SECONDS * scale))
            yield Figure("CPU while nothing happens", idle, "% of a core", "at most", IDLE_PERCENT_MAX)
            watch = _Watch(relay.pid)
            watch.start()
            served = _receive(relay.url, served_bytes)
            most_mb = watch.end()
            what = f"anonymous memory while {served / 1e9:.1f} GB are served"
            yield Figure(what, most_mb, "MB", "at most", ANON_MB_MAX)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
