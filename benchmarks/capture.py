"""Capture from a real server's backlog into the relay's log, against the bare dump and other readers of the same log.

Default durability; every reader in a process of its own, one after the other, on the same server with the same backlog
on the same machine. databus is timed from its log-in to the last row fsynced; peers from their first row to their last
(so without log-in and start), the slow ones on what they read within twenty seconds. The bare dump is everything that
the server sends, received into one buffer; the server's own tool writes the same into files.

    databus bench capture --workload updates
"""

import sys
from collections.abc import Iterator

from benchmarks._mysql import WORKLOADS, backlog, to_json
from benchmarks._peers import Reading, limit, peers, raw_dump, run
from benchmarks.figures import Figure

KIND = "mysql-8.0"
RUNS = 3


def _median(readings: list[Reading]) -> Reading:
    failed = next((each for each in readings if each.missing), None)
    if failed is not None:
        raise RuntimeError(f"{failed.name}: {failed.missing}")
    return sorted(readings, key=lambda each: each.seconds)[len(readings) // 2]


def figures(scale: float = 1.0, workload: str = "orders", server: str = KIND) -> Iterator[Figure]:
    rows = int(WORKLOADS[workload].rows * scale)
    with backlog(server, workload, rows) as found:
        told = to_json(found)
        command = [sys.executable, "-m", "benchmarks._mysql_capture"]
        ours, bare, raw = [], [], []
        limit(told)  # the first one reads the server's files from the disk
        for _ in range(RUNS):
            bare.append(limit(told))
            raw.append(raw_dump(found))
            ours.append(run("databus", command, told))
        dump, best = _median(bare), _median(ours)
        what = found.describe()
        unit = "rows/s" if WORKLOADS[workload].a_transaction > 1 else "transactions/s"
        yield Figure(f"bare dump ({what})", dump.bytes_per_s / 1e6, "MB/s")
        for against in (dump, raw[0] if raw[0].missing else _median(raw)):
            if against.missing:
                yield _absent(against)
            else:
                mb_per_s = against.bytes_per_s / 1e6
                yield Figure(
                    "databus, bytes of the server's log", best.bytes_per_s / 1e6, "MB/s", against.name, mb_per_s
                )
        yield Figure("databus", best.rows_per_s, unit)
        yield from _costs(best)
        for peer in peers(told):
            if peer.missing:
                yield _absent(peer)
                continue
            part = f"databus against {peer.name}, measured on {peer.rows:,}"
            yield Figure(part, best.rows_per_s, unit, peer.name, peer.rows_per_s)
            yield from _costs(peer)


def _absent(reader: Reading) -> Figure:
    return Figure(f"{reader.name}: not measured: {reader.missing}", 0.0, "")


def _costs(of: Reading) -> Iterator[Figure]:
    yield Figure(f"{of.name}, CPU seconds per million rows", of.cpu_s_per_million, "s")
    yield Figure(f"{of.name}, peak anonymous memory", of.anon_mb, "MB")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
