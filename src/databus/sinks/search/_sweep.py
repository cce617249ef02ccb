"""Sweeps: what a control says of all rows before it is done to their documents, page by page.

A document is named with the version of what it becomes, so that one which became newer meanwhile stays.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from databus.core import COMMIT_VERSION, SEQ, FatalError, Pair, ServiceUnavailable
from databus.link import TOO_LARGE
from databus.sinks.search._bulk import FILTER, NDJSON, line, sort_answer
from databus.sinks.search._client import SearchAnswerTooLarge, SearchClient
from databus.sinks.search._indices import path_of
from databus.sinks.search._mapping import DELETED, below

_PAGE: Final = 1_000
_KEPT_OPEN: Final = "2m"
_REQUEST_CHARS_MAX: Final = 5 << 20


class Hit(NamedTuple):
    """A document, as a search finds it."""

    id: str
    document: Mapping[str, Any]


class Sweep:
    """Over one index. typed, soft: see `operations`. before: called before each bulk request."""

    def __init__(
        self, client: SearchClient, index: str, *, typed: bool, soft: bool, before: Callable[[], None] = lambda: None
    ) -> None:
        self._client = client
        self._index = index
        self._typed = typed
        self._soft = soft
        self._before = before

    def refresh(self) -> bool:
        """Have searches find all that was written. Returns whether there is such an index."""
        answer = self._client.ask("POST", f"{path_of(self._index)}/_refresh", may=(404,))
        if answer is not None and answer["_shards"]["failed"]:
            raise ServiceUnavailable(f"index {self._index}: shards were not refreshed: {answer['_shards']}")
        return answer is not None

    def count_below(self, pair: Pair) -> int:
        """How many documents there are whose pair is below this one."""
        answer = self._client.ask("GET", f"{path_of(self._index)}/_count", {"query": below(pair)})
        return int(self._whole(answer)["count"])

    def newest(self) -> Pair:
        """The greatest pair of a document; (0, 0) if there is none."""
        order = [{COMMIT_VERSION: "desc"}, {SEQ: "desc"}]
        body = {"size": 1, "sort": order, "_source": [COMMIT_VERSION, SEQ]}
        hits = self._whole(self._client.ask("POST", f"{path_of(self._index)}/_search", body))["hits"]["hits"]
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

    def shut_out(self, ids: Sequence[str], scn: int) -> None:
        """Have the server remember that these documents are deleted since this SCN, where it holds nothing as new: rows
        from before are refused then, also of documents that it never held.
        """
        kind = "external"
        self.send([line("delete", self._index, id_, scn, None, typed=self._typed, version_type=kind) for id_ in ids])

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
        for page in self.pages(query, fields):
            made = [text for text in map(lines, page) if text]
            self.send(made)
            count += len(made)
        return count

    def pages(self, query: Mapping[str, Any], fields: Sequence[str] | None = None) -> Iterator[list[Hit]]:
        """The documents that a query finds, with these fields of theirs, or all. Raises `ServiceUnavailable` where not
        all of them come. Where a page is too large, all come again, in smaller ones.
        """
        size = _PAGE
        while True:
            try:
                yield from self._pages_of(size, query, fields)
            except SearchAnswerTooLarge:
                if size == 1:
                    raise
                size = max(size // 10, 1)
            else:
                return

    def _pages_of(self, size: int, query: Mapping[str, Any], fields: Sequence[str] | None) -> Iterator[list[Hit]]:
        body = {"size": size, "query": query, "sort": ["_doc"], "_source": True if fields is None else [*fields]}
        if fields is not None and not fields:
            body["_source"] = False
        page = self._client.ask("POST", f"{path_of(self._index)}/_search?scroll={_KEPT_OPEN}", body)
        total = self._whole(page)["hits"]["total"]
        left = int(total["value"] if isinstance(total, dict) else total)
        scroll = page["_scroll_id"]
        while hits := self._whole(page)["hits"]["hits"]:
            left -= len(hits)
            yield [Hit(hit["_id"], hit.get("_source") or {}) for hit in hits]
            asked = {"scroll": _KEPT_OPEN, "scroll_id": scroll}
            page = self._client.ask("POST", "/_search/scroll", asked, may=(404,))
            if page is None:
                raise ServiceUnavailable(f"index {self._index}: a page took longer than {_KEPT_OPEN}; begun again")
            scroll = page["_scroll_id"]
        self._client.ask("DELETE", "/_search/scroll", {"scroll_id": [scroll]}, may=(404,))  # else the server does
        if left:  # a page whose answer was lost does not come again: the same request gets the next one
            raise ServiceUnavailable(f"index {self._index}: pages with {left} documents were lost; begun again")

    def _whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer of a search; it leaves out what stands in shards that are not there, and is no error."""
        shards = answer["_shards"]
        if answer.get("timed_out") or shards["failed"] or shards["successful"] < shards["total"]:
            counts = {name: shards[name] for name in ("total", "successful", "failed")}
            raise ServiceUnavailable(
                f"index {self._index}: not all of its shards answer ({counts}), and documents in the others would be "
                f"passed over. It is tried again"
            )
        return answer

    def send(self, lines: list[str]) -> None:
        """Send lines until each is taken, or the index has something newer. Raises `ServiceUnavailable`."""
        backoff = self._client.backoff()
        while True:
            busy: list[str] = []
            for some in _requests(lines):
                busy += self._sent(some)
            if not busy:
                return
            if backoff.is_over:
                raise ServiceUnavailable(f"{self._client.name} takes no rows of a sweep over {self._index}")
            lines = busy
            backoff.sleep()

    def _sent(self, lines: list[str]) -> list[str]:
        """Returns those to be sent again."""
        self._before()
        answer = self._client.send("POST", f"/_bulk?{FILTER}", "".join(lines).encode(), NDJSON)
        if answer.status == TOO_LARGE and len(lines) > 1:
            middle = len(lines) // 2
            return [*self._sent(lines[:middle]), *self._sent(lines[middle:])]
        if answer.status >= 300:
            raise self._client.error_of(answer, "POST /_bulk")
        try:
            answers = sort_answer(answer.content, len(lines))
        except ValueError as error:
            raise ServiceUnavailable(f"{self._client.name}: {error}. The sweep is begun again") from error
        if answers.refused:
            first = answers.refused[0]
            raise FatalError(
                f"index {self._index}: refuses what it held itself: {first.reason}: {lines[first.place][:200]}"
            )
        return [lines[place] for place in answers.busy]


def _requests(lines: list[str]) -> Iterator[list[str]]:
    """Of some bytes each; a document that alone is longer has one of its own."""
    some: list[str] = []
    size = 0
    for text in lines:
        if some and size + len(text) > _REQUEST_CHARS_MAX:
            yield some
            some, size = [], 0
        some.append(text)
        size += len(text)
    if some:
        yield some


def as_json(value: Any) -> str:
    """A value of an option, as what travels to tasks can hold it."""
    return json.dumps(value, sort_keys=True)
