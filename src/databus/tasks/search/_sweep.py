"""Sweeps: what a control says of all rows before it is done to their documents, page by page.

A document is named with the version of what it becomes, so that one which became newer meanwhile stays.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from databus.core import COMMIT_VERSION, SEQ, FatalError, Pair, ServiceUnavailable
from databus.tasks.search._bulk import FILTER, line, sort_answer
from databus.tasks.search._client import Client
from databus.tasks.search._indices import path_of
from databus.tasks.search._mapping import DELETED, below

_PAGE: Final = 1_000
_KEPT_OPEN: Final = "2m"
_TRIES_MAX: Final = 10


class Hit(NamedTuple):
    """A document, as a search finds it."""

    id: str
    document: Mapping[str, Any]


class Sweep:
    """Over one index. typed, soft: see `operations`."""

    def __init__(self, client: Client, index: str, *, typed: bool, soft: bool) -> None:
        self._client = client
        self._index = index
        self._typed = typed
        self._soft = soft

    def refresh(self) -> bool:
        """Have searches find all that was written. Returns whether there is such an index."""
        return self._client.ask("POST", f"{path_of(self._index)}/_refresh", may=(404,)) is not None

    def count_below(self, pair: Pair) -> int:
        """How many documents there are whose pair is below this one."""
        found = self._client.ask("GET", f"{path_of(self._index)}/_count", {"query": below(pair)})
        return int(found["count"])

    def newest(self) -> Pair:
        """The greatest pair of a document; (0, 0) if there is none."""
        order = [{COMMIT_VERSION: "desc"}, {SEQ: "desc"}]
        body = {"size": 1, "sort": order, "_source": [COMMIT_VERSION, SEQ]}
        hits = self._client.ask("POST", f"{path_of(self._index)}/_search", body)["hits"]["hits"]
        return (int(hits[0]["_source"][COMMIT_VERSION]), int(hits[0]["_source"][SEQ])) if hits else (0, 0)

    def delete_below(self, pair: Pair) -> int:
        """Delete the documents whose pair is below this one, or have them say that they are deleted. Returns how many
        there were.
        """
        scn, seq = pair
        query: dict[str, Any] = below(pair)
        if not self._soft:
            return self._apply(query, [], lambda hit: line("delete", self._index, hit.id, scn, None, typed=self._typed))
        query = {"bool": {"filter": [query], "must_not": [{"term": {DELETED: True}}]}}
        gone = {DELETED: True, COMMIT_VERSION: scn, SEQ: seq}
        return self._apply(
            query,
            None,
            lambda hit: line("index", self._index, hit.id, scn, {**hit.document, **gone}, typed=self._typed),
        )

    def rewrite_below(self, pair: Pair, change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> int:
        """Make the documents whose pair is below this one into others, of the same pair; returns how many.

        change: None for a document that stays as it is.
        """

        def lines(hit: Hit) -> str:
            made = change(hit.document)
            version = int(hit.document[COMMIT_VERSION])
            return "" if made is None else line("index", self._index, hit.id, version, made, typed=self._typed)

        return self._apply(below(pair), None, lines)

    def _apply(self, query: Mapping[str, Any], fields: Sequence[str] | None, lines: Callable[[Hit], str]) -> int:
        count = 0
        for page in self._pages(query, fields):
            made = [text for text in map(lines, page) if text]
            self._send(made)
            count += len(made)
        return count

    def _pages(self, query: Mapping[str, Any], fields: Sequence[str] | None) -> Iterator[list[Hit]]:
        body = {"size": _PAGE, "query": query, "sort": ["_doc"], "_source": True if fields is None else [*fields]}
        if fields is not None and not fields:
            body["_source"] = False
        found = self._client.ask("POST", f"{path_of(self._index)}/_search?scroll={_KEPT_OPEN}", body)
        scroll = found["_scroll_id"]
        try:
            while hits := found["hits"]["hits"]:
                yield [Hit(each["_id"], each.get("_source") or {}) for each in hits]
                found = self._client.ask("POST", "/_search/scroll", {"scroll": _KEPT_OPEN, "scroll_id": scroll})
                scroll = found["_scroll_id"]
        finally:
            self._client.ask("DELETE", "/_search/scroll", {"scroll_id": [scroll]}, may=(404,))

    def _send(self, lines: list[str]) -> None:
        for _ in range(_TRIES_MAX):
            if not lines:
                return
            answer = self._client.send("POST", f"/_bulk?{FILTER}", "".join(lines).encode(), "application/x-ndjson")
            if answer.status >= 300:
                raise self._client.error_of(answer, "POST /_bulk")
            found = sort_answer(answer.content)
            if found.refused:
                reason = found.refused[0].reason
                raise FatalError(f"index {self._index}: refuses what it held itself: {reason}: {lines[0][:200]}")
            lines = [lines[place] for place in found.busy]
        raise ServiceUnavailable(f"{self._client.name} takes no rows of a sweep over {self._index}")


def as_json(value: Any) -> str:
    """A value of an option, as what travels to tasks can hold it."""
    return json.dumps(value, sort_keys=True)
