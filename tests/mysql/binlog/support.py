"""Scanning in tests, and what a scan gave in the twin's words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from databus.sources.mysql._prepared_store import PreparedStore
from databus.sources.mysql.binlog import Abandoned, LoggedStatement, LogPosition, LogRun, Rotated, Scanner, TableMap
from tests.mysql.binlog.twin import Rows, Transaction
from tests.mysql.binlog.workload import CAPTURED, flavor_of


def wants(table: TableMap) -> bool:
    return table.database == CAPTURED


def scanner(kind: str, scheme: Any, start: LogPosition | None = None, **options: Any) -> Scanner:
    options.setdefault("is_file", True)
    options.setdefault("prepared", Held())
    return Scanner(
        flavor_of(kind), wants, start, scheme=scheme, wants_database=lambda database: database == CAPTURED, **options
    )


class Held(PreparedStore):
    """Holds XA transactions for one scanner; what was prepared before it began is nothing."""

    def __init__(self) -> None:
        super().__init__("tests", None, scn=0, timeline=0, selection="", bytes_max=1 << 30)

    def commit(self, xid: str, ordinal: int) -> Iterator[bytes]:
        return super().commit(xid, ordinal) or iter(())


def scan(scanning: Scanner, files: Mapping[str, bytes], cuts: Sequence[int] = (1 << 20,)) -> list[Any]:
    """All that a scanner makes of files, fed in pieces of these lengths, over and over."""
    found: list[Any] = []
    turn = 0
    for name, raw in files.items():
        scanning.open_file(name)
        at = 0
        while at < len(raw):
            length = cuts[turn % len(cuts)]
            turn += 1
            scanning.feed(raw[at : at + length])
            at += length
            while (item := scanning.next()) is not None:
                found.append(item)
    return found


def transactions_of(scanning: Scanner, found: Iterable[Any]) -> list[Transaction]:
    """The transactions in what a scanner gave, each once, whatever the runs it came in."""
    transactions: list[Transaction] = []
    unfinished: Transaction | None = None
    file = ""
    for item in found:
        if isinstance(item, Rotated):
            file = item.file
        elif isinstance(item, LoggedStatement):
            if unfinished is None:
                unfinished = Transaction(item.txid, file, 0, item.commit_us)
            assert (unfinished.txid, unfinished.commit_us) == (item.txid, item.commit_us)
            unfinished.items.append(item.text)
            if item.position is not None:
                unfinished.end = item.position["offset"]
                transactions.append(unfinished)
                unfinished = None
        elif isinstance(item, LogRun):
            assert item.continues == (unfinished is not None)
            unfinished = _take_run(scanning, item, transactions, unfinished)
        elif isinstance(item, Abandoned):
            unfinished = None
    return transactions


def _take_run(
    scanning: Scanner, run: LogRun, transactions: list[Transaction], unfinished: Transaction | None
) -> Transaction | None:
    buffer = run.buffer.tobytes()
    txids = run.txids(0, len(run)).to_pylist()
    mine: list[Transaction] = []
    for row, txid in enumerate(txids):
        if row == 0 and unfinished is not None:
            assert (unfinished.txid, unfinished.commit_us) == (txid, run.commit_us[0])
            mine.append(unfinished)
        else:
            mine.append(Transaction(txid, run.file, 0, int(run.commit_us[row])))
        mine[-1].end = int(run.end_file_offset[row])
    for i, row in enumerate(run.event_transaction.tolist()):
        source = scanning.tables[int(run.event_slot[i])].source
        images = buffer[int(run.event_start[i]) : int(run.event_end[i])]
        mine[row].items.append(Rows(source, int(run.event_kind[i]), images, int(run.event_file_offset[i])))
    assert all(transaction.end >= 0 for transaction in mine[:-1])
    assert run.is_complete == (mine[-1].end >= 0)
    transactions += mine if run.is_complete else mine[:-1]
    return None if run.is_complete else mine[-1]


def without_start(transactions: Iterable[Transaction]) -> list[Transaction]:
    """As the scanner gives them: it does not say where a transaction begins."""
    return [Transaction(each.txid, each.file, 0, each.commit_us, each.end, each.items) for each in transactions]


def positions_of(items: Sequence[object]) -> list[LogPosition]:
    """The position after each transaction."""
    positions: list[LogPosition] = []
    for item in items:
        if isinstance(item, LogRun):
            ends = [i for i in range(len(item)) if item.end_file_offset[i] >= 0]
            positions += [LogPosition.from_json(item.position(i)) for i in ends]
        elif isinstance(item, LoggedStatement) and item.position is not None:
            positions.append(LogPosition.from_json(item.position))
    return positions
