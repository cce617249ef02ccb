"""Transactions in parts: rows of one transaction that come in several batches, and have one version.

By the version the server cannot tell which row of a key is the newer one, and it may carry a request out long after
that was given up. So a row of a part is put with `external`, which takes nothing over what has its own version; the
first row of a key gets there, and however late its request is carried out, it never takes the place of another row. A
row that is turned away is held in an index beside, where `_seq` is the version. Once the transaction has ended, the
last row of each key that is held is put into its index.

The control index says of each table in which index rows of its last such transaction were held:
`{"log", "scn", "uuid", "index", "of"}`. An index that was removed meanwhile is missed by that.
"""

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from databus.core import CorruptData, InputError, Pair
from databus.flow import Bucket, Int
from databus.sinks.search._bulk import BulkOperations, line
from databus.sinks.search._client import SearchClient
from databus.sinks.search._control import HELD, ControlIndex
from databus.sinks.search._indices import TYPE, Indices, path_of
from databus.sinks.search._sweep import Hit, Sweep

PARTS_INDEX: Final = "databus-parts"
_EXISTS: Final = (400,)
_FIELDS: Final = {
    **{name: {"type": "keyword"} for name in ("owner", "source", "log")},
    **{name: {"type": "long"} for name in ("scn", "seq", "hash")},
}
_GC_DELETES: Final = "1h"
HASHES: Final = 1 << 31
"""Of how many numbers the hash of a held row's key is one: such that it tells the bucket, however many there are."""


@dataclass(frozen=True)
class TransactionPart:
    """Whose rows are held: those of one transaction, into one output."""

    owner: str
    log: str
    """That their `_seq`s are of."""
    scn: int

    def fields(self) -> Mapping[str, Any]:
        """What a document says of it."""
        return {"owner": self.owner, "log": self.log, "scn": self.scn}


class HeldRows:
    """The index in which rows are held. typed: whether the server has types. before: called before each request."""

    def __init__(self, client: SearchClient, *, typed: bool, before: Callable[[], None] = lambda: None) -> None:
        self.typed = typed
        self._client = client
        self._sweep = Sweep(client, PARTS_INDEX, typed=typed, soft=False, before=before)

    def send(self, lines: list[str]) -> None:
        """See `Sweep.send`."""
        self._sweep.send(lines)

    def pages(self, fields: Mapping[str, Any]) -> Iterator[list[Hit]]:
        """What is held that has these values."""
        if not self._sweep.refresh():
            return
        terms = [{"term": {name: value}} for name, value in fields.items()]
        yield from self._sweep.pages({"bool": {"filter": terms}})

    def let_go(self, held: Sequence[Hit]) -> None:
        """Delete; the version stays behind, so that a request that is carried out later brings nothing back."""
        self.send([line("delete", PARTS_INDEX, hit.id, hit.document["seq"], None, typed=self.typed) for hit in held])

    def forget(self, owner: str, source: str, pair: Pair | None = None) -> None:
        """Let go of what an output holds of a table; with a pair, of what is below it."""
        for page in self.pages({"owner": owner, "source": source}):
            self.let_go([hit for hit in page if pair is None or _pair(hit) < pair])

    def give(self, before: str, owner: str, uuid_of: Callable[[str], str | None]) -> None:
        """Have what one output holds be another's. uuid_of: of an index."""
        for page in self.pages({"owner": before}):
            given = []
            for hit in page:
                document = {**hit.document, "owner": owner}
                (action,) = json.loads(_unpacked(document["packed"]).partition("\n")[0]).values()
                index, part = action["_index"], TransactionPart(owner, document["log"], document["scn"])
                name = _held_name(part, document["source"], index, uuid_of(index), action["_id"])
                given.append(_held_line(name, document, typed=self.typed))
            self.send(given)
            self.let_go(page)

    def make(self) -> None:
        """Make the index, if it is not there. Raises `InputError` for one of which no search could find what is held: a
        server makes an index by itself for what is sent to one that was removed.
        """
        wanted: dict[str, Any] = {"dynamic": False, "properties": _FIELDS}
        body = {
            "settings": {"index.gc_deletes": _GC_DELETES},
            "mappings": {TYPE: wanted} if self.typed else wanted,
        }
        if self._client.ask("PUT", path_of(PARTS_INDEX), body, may=_EXISTS) is not None:
            return
        ((_, index),) = self._client.ask("GET", f"{path_of(PARTS_INDEX)}/_mapping").items()
        mapping = next(iter(index["mappings"].values()), {}) if self.typed else index["mappings"]
        here = mapping.get("properties") or {}
        if any((here.get(name) or {}).get("type") != field["type"] for name, field in _FIELDS.items()):
            raise InputError(
                f"index {PARTS_INDEX}, in which rows of large transactions wait, was made by somebody else, so that "
                f"these rows would not be found again. Remove it, while no pipeline runs that writes to this cluster"
            )


class HeldParts:
    """What a bucket holds, and puts once its transaction has ended."""

    def __init__(self, held: HeldRows, indices: Indices, control: ControlIndex, bucket: Bucket) -> None:
        self._held = held
        self._indices = indices
        self._control = control
        self._bucket = bucket

    def hold(self, part: TransactionPart, source: str, index: str, rows: BulkOperations, hashes: Int) -> None:
        """Hold rows of a table that were turned away. hashes: of their keys."""
        self._held.make()
        uuid, here = self._indices.uuid(index), self._indices.uuid(PARTS_INDEX)

        def noted(before: dict[str, Any] | None) -> Mapping[str, Any]:
            if before is not None and before["log"] == part.log and before["scn"] > part.scn:
                return before  # of a later transaction: this task was given up
            self._check(source, before, part)
            return {"log": part.log, "scn": part.scn, "uuid": here, "index": index, "of": uuid}

        self._control.change(HELD, source, noted)
        documents = zip(rows.texts.to_pylist(), rows.ids.to_pylist(), rows.seqs.tolist(), hashes.tolist(), strict=True)
        self._held.send([self._line(part, source, index, uuid, *row) for row in documents])
        self._check(source, self._control.read(HELD, source), part)

    def _line(
        self,
        part: TransactionPart,
        source: str,
        index: str,
        uuid: str | None,
        text: str,
        name: str,
        seq: int,
        number: int,
    ) -> str:
        document = {**part.fields(), "source": source, "seq": seq, "hash": number, "packed": _packed(text)}
        return _held_line(_held_name(part, source, index, uuid, name), document, typed=self._held.typed)

    def settle(self, part: TransactionPart) -> None:
        """Put what the bucket holds of a transaction that has ended into its indices.

        An index that has gone on since then keeps what it has.
        """
        bucket = self._bucket
        noted = self._control.read_all(HELD, [name for name in self._control.names(HELD) if bucket.reads(name)])
        for page in self._held.pages(part.fields()):
            mine = [
                hit
                for hit in page
                if hit.document["hash"] % bucket.buckets == bucket.number and bucket.reads(hit.document["source"])
            ]
            self._held.send([_unpacked(hit.document["packed"]) for hit in mine])
            self._held.let_go(mine)
        for name, document in noted.items():
            self._check(name, document, part)

    def _check(self, name: str, noted: Mapping[str, Any] | None, part: TransactionPart) -> None:
        """Raises `CorruptData` where the index is gone in which rows of a part were held. A table whose own index was
        rebuilt since then has come again.
        """
        if noted is None or not _is_of(part, noted) or noted["uuid"] == self._indices.uuid(PARTS_INDEX):
            return
        if self._indices.uuid(noted["index"]) == noted["of"]:
            output = self._bucket.output
            raise CorruptData(
                f"outputs.{output}: index {PARTS_INDEX} was removed, or made by somebody else, while rows of the "
                f"transaction at SCN {part.scn} waited in it, so that rows of {name} are missing. Have its index made "
                f"anew: `databus rebuild FILE {output} {name}` (FILE is the pipeline's file)"
            )


def _held_name(part: TransactionPart, source: str, index: str, uuid: str | None, name: str) -> str:
    """What a held row is called. name: its document."""
    return sha256(json.dumps([*part.fields().values(), source, index, uuid, name]).encode()).hexdigest()


def _held_line(name: str, document: Mapping[str, Any], *, typed: bool) -> str:
    """Holds a row, unless a newer one of its key is held."""
    return line("index", PARTS_INDEX, name, document["seq"], document, typed=typed, version_type="external")


def _packed(text: str) -> str:
    """Lines as a value that is hardly ever longer than they are: as text in JSON, each quote is escaped once more, and
    the server may refuse what becomes too large by that.
    """
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def _unpacked(packed: str) -> str:
    return zlib.decompress(base64.b64decode(packed)).decode()


def _is_of(part: TransactionPart, noted: Mapping[str, Any]) -> bool:
    return (noted["log"], noted["scn"]) == (part.log, part.scn)


def _pair(held: Hit) -> Pair:
    return int(held.document["scn"]), int(held.document["seq"])
