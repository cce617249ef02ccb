"""Indices: made for their tables when the first rows come, given the fields that new columns want, and told apart.

An index that is made here says in its mapping whose it is. One that the user has made, with a mapping of his own, is
taken as it is while it is empty; fields that it lacks are added.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from databus.core import COMMIT_VERSION, SEQ, InputError, Pair, ServiceUnavailable, UnsupportedFeature
from databus.flow import KeyChoice
from databus.schema import TableSchema
from databus.sinks.search._client import SearchClient
from databus.sinks.search._document_change import META, meta_of
from databus.sinks.search._mapping import DELETED, OWN_FIELDS, check_names, index_name, mapping_of

_EXISTS: Final = (400,)
TYPE: Final = "_doc"
_IDS_A_REQUEST: Final = 1_000
_NARROWING: Final = frozenset({"filter", "index_routing", "search_routing"})
"""What an alias may have that leaves out some of the documents behind it."""


@dataclass(frozen=True)
class IndexPlan:
    """How tables become indices; travels to tasks."""

    owner: str
    """The output, as an index's mapping names it."""
    template: str = "{table}"
    """Of an index's name, with `{physical}`, `{db}` and `{table}`; `aliases` are such, too."""
    aliases: tuple[str, ...] = ()
    settings: str = "{}"
    """Of new indices."""
    own: str = "{}"
    """Mappings of fields that the user has chosen, by column or by `db.table` and column."""
    key: KeyChoice = field(default_factory=KeyChoice, hash=False)
    soft: bool = False
    """See `operations`."""
    typed: bool = False
    """Whether the server wants types of documents."""
    has_unsigned: bool = False
    """Whether the server has a type for unsigned integers."""
    on_schema_change: str = "follow"
    """`follow`, `ignore` or `stop`."""
    gc_deletes_s: int = 3600
    """For how long a server remembers what was deleted."""
    generation: str = ""
    """Another one where indices may be others than before."""

    def name(self, physical: str, source: str) -> str:
        """The index of a source. Raises `InputError`."""
        return index_name(self.template, physical, source)

    def key_of(self, table: TableSchema) -> tuple[str, ...]:
        """The columns that tell its rows apart. Raises `InputError` for a table without any."""
        key = tuple(self.key.of(table.source)) or table.key
        if not key:
            raise InputError(
                f"{table.source}: has no key, by which its rows could be told apart. Name one with `key`, or leave "
                f"the table out"
            )
        return key

    def mapping(self, table: TableSchema) -> dict[str, Any]:
        """The properties that its index has."""
        mine = self.own_of(table.source)
        return mapping_of(table, self.key_of(table), mine, has_unsigned=self.has_unsigned, soft=self.soft)

    def own_of(self, source: str) -> Mapping[str, Any]:
        """The mappings that the user wants for fields of a source, by column."""
        own = json.loads(self.own)
        return {**{name: mapping for name, mapping in own.items() if "type" in mapping}, **own.get(source, {})}


class Indices:
    """Of a plan, in one process. It remembers which are ready."""

    def __init__(self, client: SearchClient, plan: IndexPlan) -> None:
        self._client = client
        self._plan = plan
        self._ready: set[tuple[str, int]] = set()
        self._anew: dict[str, Pair] = {}

    def ready(self, physical: str, table: TableSchema) -> str:
        """See to it that there is an index for rows of a table in this definition; returns its name.

        Raises `InputError` for one that is another's, `UnsupportedFeature` for columns that cannot be fields, and for
        new ones where these are not wanted.
        """
        name = self._plan.name(physical, table.source)
        if (name, table.fingerprint) not in self._ready:
            check_names(table)
            self._make(name, f"{physical}/{table.source}", table)
            self._ready.add((name, table.fingerprint))
        return name

    def _make(self, name: str, source: str, table: TableSchema) -> None:
        plan, wanted = self._plan, self._plan.mapping(table)
        made = self._client.ask("PUT", path_of(name), self._body(source, table, wanted), may=_EXISTS)
        mapping = self.mapping(name)
        if mapping is None:  # it was not there and could not be made: say why
            self._client.ask("PUT", path_of(name), self._body(source, table, wanted))
            return
        _check_found(name, mapping)
        if made is not None:
            return
        self._check_alias(name)
        whose = (mapping.get("_meta") or {}).get(META)
        scn, seq = (whose or {}).get("anew") or (0, 0)
        self._anew[name] = int(scn), int(seq)
        if whose is None and self._has_documents(name):
            raise InputError(
                f"index {name} holds documents that this output has not written, and is to hold those of {source}. "
                f"Remove it, or give the output another `index`"
            )
        if whose is not None and (whose.get("source"), whose.get("owner")) != (source, plan.owner):
            raise InputError(
                f"index {name} is of {whose.get('source')}, written by {whose.get('owner')}, and cannot be that of "
                f"{source} of {plan.owner} as well. Give the output another `index`, such as `{{db}}-{{table}}`"
            )
        self._follow(name, source, mapping)
        here = mapping.get("properties") or {}
        missing = {column: kind for column, kind in wanted.items() if column not in here}
        if missing and here and whose is not None:
            if plan.on_schema_change == "stop":
                raise UnsupportedFeature(
                    f"index {name}: {source} has new columns: {', '.join(missing)}, and `on_schema_change` is stop. "
                    f"Say follow or ignore; or rebuild the index with `databus rebuild`"
                )
            if plan.on_schema_change == "ignore":
                missing = {}
        if missing or whose is None:
            meta = self._meta(source, table) if whose is None else {}
            self._client.ask("PUT", f"{path_of(name)}/_mapping{self._type}", {"properties": missing, **meta})
        self._client.ask("PUT", f"{path_of(name)}/_settings", {"index.gc_deletes": f"{plan.gc_deletes_s}s"})

    def _check_alias(self, name: str) -> None:
        """Look at an alias in the place of an index. Raises `InputError` for one that shows, or reaches, some of its
        documents alone: older ones would be passed over.
        """
        alias = _only(name, self._client.ask("GET", f"{path_of(name)}/_alias"))["aliases"].get(name) or {}
        narrowed = alias.keys() & _NARROWING
        if narrowed:
            raise InputError(
                f"index {name}: is an alias with {', '.join(sorted(narrowed))}, by which documents would be passed "
                f"over that a truncation or a snapshot removes. Give the output another `index`, or the alias neither"
            )

    def _has_documents(self, name: str) -> bool:
        """Whether there are any, also such as searches do not find yet. Raises `ServiceUnavailable` where some shards
        do not say.
        """
        self._client.ask("POST", f"{path_of(name)}/_refresh")
        answer = self._client.ask("GET", f"{path_of(name)}/_count")
        shards = answer["_shards"]
        if not answer["count"] and shards["successful"] < shards["total"]:
            raise ServiceUnavailable(f"index {name}: not all of its shards say whether they hold documents: {shards}")
        return bool(answer["count"])

    def is_of(self, name: str, source: str) -> bool:
        """Whether an index says that it is of a source, by full name, and written by this output."""
        whose = ((self.mapping(name) or {}).get("_meta") or {}).get(META) or {}
        return (whose.get("source"), whose.get("owner")) == (source, self._plan.owner)

    def take_over(self, name: str, before: str) -> None:
        """Have an index that says that it was written by the output `before` say that this one does."""
        whose = ((self.mapping(name) or {}).get("_meta") or {}).get(META) or {}
        if whose.get("owner") == before:
            body = {"properties": {}, "_meta": {META: {**whose, "owner": self._plan.owner}}}
            self._client.ask("PUT", f"{path_of(name)}/_mapping{self._type}", body)

    def follow_options(self, name: str, source: str) -> list[str]:
        """Give the fields of an index, if it is there, the mappings that the user wants now; returns the names of those
        that were changed. What was added beside them on the server stays. source: in full. Raises `InputError`
        where the server does not do it.
        """
        mapping = self.mapping(name)
        return [] if mapping is None else self._follow(name, source, mapping)

    def _follow(self, name: str, source: str, mapping_now: Mapping[str, Any]) -> list[str]:
        here, short = mapping_now.get("properties") or {}, source.partition("/")[2]
        wanted_here = ((column, mapping) for column, mapping in self._plan.own_of(short).items() if column in here)
        own = {column: mapping for column, mapping in wanted_here if not mapping.items() <= here[column].items()}
        path = f"{path_of(name)}/_mapping{self._type}"
        for column, wanted in own.items():  # the server knows which words say the same, and what it can change
            if self._client.ask("PUT", path, {"properties": {column: wanted}}, may=_EXISTS) is None:
                output = self._plan.owner.partition("/")[2]
                raise InputError(
                    f"index {name}: field {column} of {source} has the mapping {json.dumps(here[column])} there, which "
                    f"the server cannot change to what `mapping` says: {json.dumps(wanted)}. Rebuild the index: "
                    f"`databus rebuild FILE {output} {short}` (FILE is the pipeline's file); or change `mapping` back"
                )
        now = ((self.mapping(name) if own else None) or {}).get("properties") or {}
        return [column for column in own if now.get(column) != here[column]]

    def takes_above(self, name: str) -> Pair:
        """The pair above which an index that is ready takes rows: that of the change for which it was rebuilt."""
        return self._anew.get(name, (0, 0))

    def note_change(self, name: str, source: str, table: TableSchema, pair: Pair, *, is_anew: bool) -> None:
        """Have the index say that it has followed the change of its table's schema at this pair. is_anew: and that it
        was rebuilt for it.
        """
        rebuilt_at = pair if is_anew else self.takes_above(name)
        body = {"properties": {}, **self._meta(source, table, pair, rebuilt_at)}
        self._client.ask("PUT", f"{path_of(name)}/_mapping{self._type}", body)

    def _meta(self, source: str, table: TableSchema, pair: Pair = (0, 0), anew: Pair = (0, 0)) -> dict[str, Any]:
        return meta_of(self._plan.owner, source, table.names, self._plan.key_of(table), pair, anew)

    def _body(self, source: str, table: TableSchema, properties: Mapping[str, Any]) -> dict[str, Any]:
        physical, _, short = source.partition("/")
        mapping = {"dynamic": False, **self._meta(source, table), "properties": properties}
        aliases: dict[str, Any] = {index_name(alias, physical, short): {} for alias in self._plan.aliases}
        return {
            "settings": {"index.gc_deletes": f"{self._plan.gc_deletes_s}s", **json.loads(self._plan.settings)},
            "mappings": {TYPE: mapping} if self._plan.typed else mapping,
            "aliases": aliases,
        }

    @property
    def _type(self) -> str:
        return f"/{TYPE}" if self._plan.typed else ""

    def mapping(self, name: str) -> dict[str, Any] | None:
        """The mapping of an index; None if there is none."""
        answer = self._client.ask("GET", f"{path_of(name)}/_mapping", may=(404,))
        if answer is None:
            return None
        mappings: dict[str, Any] = _only(name, answer)["mappings"]
        return next(iter(mappings.values()), {}) if self._plan.typed else mappings

    def uuid(self, name: str) -> str | None:
        """What tells an index from an earlier one of its name; None if there is none."""
        answer = self._client.ask("GET", f"{path_of(name)}/_settings/index.uuid", may=(404,))
        if not answer:
            return None
        return str(_only(name, answer)["settings"]["index"]["uuid"])

    def remove(self, name: str) -> None:
        """Remove an index, if it is there."""
        self._client.ask("DELETE", path_of(name), may=(404,))
        self._ready = {key for key in self._ready if key[0] != name}


def _only(name: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """What the server says of an index, under another name where `name` is an alias."""
    if len(answer) > 1:
        raise InputError(
            f"index {name}: is an alias of several indices ({', '.join(sorted(answer))}), and rows go into one. Give "
            f"the output another `index`, or have the alias name one"
        )
    (content,) = answer.values()
    return dict(content)


def _check_found(name: str, mapping: Mapping[str, Any]) -> None:
    """Look at what a template of the server, or whoever made the index, has put into its mapping. Raises `InputError`
    where documents are not kept as they are sent, or searches would find other ones than those below a pair.
    """
    source, here = mapping.get("_source") or {}, mapping.get("properties") or {}
    if source not in ({}, {"enabled": True}):
        raise InputError(
            f"index {name}: its mapping has _source {json.dumps(source)}, so that it does not keep documents whole, "
            f"which are rewritten when columns change. Remove that from the index, or from the server's template"
        )
    for field_, wanted in OWN_FIELDS.items():
        if field_ in here and here[field_] != wanted:
            raise InputError(
                f"index {name}: field {field_} has the mapping {json.dumps(here[field_])} there, and has to be "
                f"{json.dumps(wanted)}: older documents are found by it. Remove it from the index, or from the "
                f"server's template"
            )


def pairs_of_documents(
    client: SearchClient, index: str, ids: Sequence[str], *, typed: bool, only_alive: bool = False
) -> dict[str, Pair]:
    """The pairs of those documents of an index that are there, by their ids. only_alive: without soft deletes."""
    kind = {"_type": TYPE} if typed else {}
    pairs: dict[str, Pair] = {}
    for begin in range(0, len(ids), _IDS_A_REQUEST):
        some = [{"_index": index, **kind, "_id": id_} for id_ in ids[begin : begin + _IDS_A_REQUEST]]
        answer = client.ask("POST", f"/_mget?_source={COMMIT_VERSION},{SEQ},{DELETED}", {"docs": some})
        for document in (document for document in answer["docs"] if document.get("found")):
            if only_alive and document["_source"].get(DELETED):
                continue
            pairs[document["_id"]] = int(document["_source"][COMMIT_VERSION]), int(document["_source"][SEQ])
    return pairs


def path_of(name: str) -> str:
    """The path of an index."""
    return f"/{quote(name, safe='')}"
