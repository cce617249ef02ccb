"""The control index: how far each table has come, and who writes the parts of a large transaction.

A document for each table: `{"index", "uuid", "log", "scn", "seq", "way", "db", "seed", "txid", "ts_us"}`; and a claim,
by whoever was the first to write to its index, before he did: the same, with the end of his batch. A document for each
bucket that has written a part of a transaction: `{"token"}`. A document for each table of which rows were held: see
`Parts`. And one for each table that was emptied: `{"uuid", "scn", "seq"}`, below which none of its rows is there any
more.

Each document is written with a version above the one that was read, so that a request that was given up, and is carried
out later, puts nothing back. For the same reason what is removed stays as a document that says so.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from databus.core import ServiceUnavailable
from databus.sinks.search._client import SearchClient
from databus.sinks.search._indices import TYPE, path_of
from databus.sinks.search._sweep import Sweep

CONTROL_INDEX: Final = "databus-control"
EMPTIED: Final = "emptied"
PLACE: Final = "place"
CLAIM: Final = "claim"
FENCE: Final = "fence"
HELD: Final = "held"
_EXISTS: Final = (400,)
_TRIES_MAX: Final = 1_000
_NAMES_A_REQUEST: Final = 1_000
_WAIT_S_MAX: Final = 0.02
_REMOVED: Final[Mapping[str, Any]] = {"removed": True}


class ControlIndex:
    """Its documents. owner: the output. typed: whether the server has types."""

    def __init__(self, client: SearchClient, owner: str, *, typed: bool) -> None:
        self._client = client
        self._owner = owner
        self._typed = typed

    def make(self) -> None:
        """Make it, if it is not there."""
        mapping: Mapping[str, Any] = {"enabled": False}
        body = {"mappings": {TYPE: mapping} if self._typed else mapping}
        self._client.ask("PUT", path_of(CONTROL_INDEX), body, may=_EXISTS)

    def read(self, kind: str, name: str) -> dict[str, Any] | None:
        """A document; None if there is none."""
        return self._look(kind, name)[0]

    def write(self, kind: str, name: str, document: Mapping[str, Any]) -> None:
        """Put a document in the place of what was there; durable when this returns."""
        self.change(kind, name, lambda _: document)

    def remove(self, kind: str, name: str) -> None:
        """Remove a document, if it is there."""
        if self.read(kind, name) is not None:
            self.write(kind, name, _REMOVED)

    def present(self, kind: str, names: Sequence[str]) -> list[str]:
        """The names of those documents that are there."""
        return [*self.read_all(kind, names)]

    def read_all(self, kind: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The documents of these names that are there."""
        by_name: dict[str, dict[str, Any]] = {}
        for begin in range(0, len(names), _NAMES_A_REQUEST):
            some = names[begin : begin + _NAMES_A_REQUEST]
            wanted = [{"_index": CONTROL_INDEX, **self._kind, "_id": self._id(kind, id_)} for id_ in some]
            answers = self._client.ask("POST", "/_mget", {"docs": wanted})["docs"]
            documents = zip(some, answers, strict=True)
            by_name |= {
                name: dict(document["_source"])
                for name, document in documents
                if document.get("found") and document["_source"] != _REMOVED
            }
        return by_name

    def names(self, kind: str) -> list[str]:
        """The names of all of its documents of a kind; none where there is no control index."""
        sweep = Sweep(self._client, CONTROL_INDEX, typed=self._typed, soft=False)
        pages = sweep.pages({"match_all": {}}) if sweep.refresh() else ()
        prefix = self._id(kind, "")
        hits = (hit for page in pages for hit in page if hit.id.startswith(prefix))
        return sorted(hit.id.removeprefix(prefix) for hit in hits if hit.document != _REMOVED)

    def change(self, kind: str, name: str, made: Callable[[dict[str, Any] | None], Mapping[str, Any]]) -> None:
        """Put what `made` makes of a document, or of None, in its place; no other writes it between look and write."""
        for _ in range(_TRIES_MAX):
            before, version = self._look(kind, name)
            document = made(before)
            if document == before:
                return
            path = f"{self._path(kind, name)}?version={version + 1}&version_type=external"
            if self._client.ask("PUT", path, document, may=(409,)) is not None:
                return
            time.sleep(random.uniform(0, _WAIT_S_MAX))  # another writer was first, or this came twice: look again
        raise ServiceUnavailable(f"{self._client.name}: document {kind}:{name} of {CONTROL_INDEX} changes all the time")

    def _look(self, kind: str, name: str) -> tuple[dict[str, Any] | None, int]:
        """A document, or None, and the version that is there."""
        answer = self._client.ask("GET", self._path(kind, name), may=(404,))
        if answer is None:
            return None, 0
        document = dict(answer["_source"])
        return None if document == _REMOVED else document, int(answer["_version"])

    def _path(self, kind: str, name: str) -> str:
        return f"{path_of(CONTROL_INDEX)}/{TYPE}/{quote(self._id(kind, name), safe='')}"

    def _id(self, kind: str, name: str) -> str:
        return f"{kind}:{self._owner}:{name}"

    @property
    def _kind(self) -> Mapping[str, str]:
        return {"_type": TYPE} if self._typed else {}
