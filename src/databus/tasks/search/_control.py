"""The control index: how far each table has come, and who writes the parts of a large transaction.

A document for each table: `{"index", "uuid", "log", "scn", "seq"}`. A document for each bucket that has written a part
of a transaction: `{"token", "ended"}`.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from databus.tasks.search._client import Client
from databus.tasks.search._indices import TYPE, path_of

CONTROL_INDEX: Final = "databus-control"
PLACE: Final = "place"
FENCE: Final = "fence"
_EXISTS: Final = (400,)


class ControlIndex:
    """Its documents. owner: the output. typed: whether the server has types."""

    def __init__(self, client: Client, owner: str, *, typed: bool) -> None:
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
        found = self._client.ask("GET", self._path(kind, name), may=(404,))
        return None if found is None else dict(found["_source"])

    def write(self, kind: str, name: str, document: Mapping[str, Any]) -> None:
        """Put a document in the place of what was there; durable when this returns."""
        self._client.ask("PUT", self._path(kind, name), document)

    def remove(self, kind: str, name: str) -> None:
        """Remove a document, if it is there."""
        self._client.ask("DELETE", self._path(kind, name), may=(404,))

    def _path(self, kind: str, name: str) -> str:
        document = quote(f"{kind}:{self._owner}:{name}", safe="")
        return f"{path_of(CONTROL_INDEX)}/{TYPE}/{document}"
