"""Search indices: the rows that each table has now, as documents of OpenSearch or Elasticsearch.

Tasks put and delete documents, with the rows' SCNs as versions (`databus.sinks.search`). Once all
buckets of a batch are there, the driver does what controls say of older documents, and notes in the control index how
far each table has come and from which log.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final
from uuid import uuid4

import pyarrow as pa

from databus.core import (
    ConfigError,
    ControlKind,
    CorruptData,
    LimitExceeded,
    Pair,
    ServiceUnavailable,
    UnsupportedFeature,
)
from databus.disk import Location
from databus.flow import Letter, Letters, StagedBatch, StagedRows, TableControl, Tasks, key_ids, released_below
from databus.operate import logger_of
from databus.places import Choice, Held, Noted, Position, Seed, place_at
from databus.plugins import Delivery, OutputConfig, OutputContext, Written
from databus.schema import SchemaChange, TableSchema
from databus.sinks._letters import LettersOutput
from databus.sinks.search._client import SearchCluster
from databus.sinks.search._config import ElasticsearchConfig, OpenSearchConfig, SearchConfig
from databus.sinks.search._control import CLAIM, EMPTIED, FENCE, HELD, PLACE, ControlIndex
from databus.sinks.search._document_change import DocumentChange
from databus.sinks.search._indices import IndexPlan, Indices, pairs_of_documents
from databus.sinks.search._mapping import check_names, index_name
from databus.sinks.search._parts import HeldRows
from databus.sinks.search._sweep import Sweep, as_json
from databus.sinks.search._writer import SearchWriter, pair_of, shut_out_above

_END: Final[Pair] = (2**63 - 1, 2**63 - 1)
_REFRESH: Final = {"none": "false", "wait": "wait_for", "force": "true"}
_UNSIGNED_SINCE: Final = {"opensearch": (2, 8), "elasticsearch": (7, 10)}
_TYPED_BELOW: Final = 7
_OLDEST: Final = {"opensearch": (1, 0), "elasticsearch": (6, 0)}


class SearchOutput(LettersOutput):
    """Keeps one index a table, whose documents are the table's rows."""

    product: ClassVar[str]
    delivery: ClassVar[Delivery] = Delivery.REPEATS_HARMLESS
    config: SearchConfig

    def __init__(self, config: SearchConfig, context: OutputContext) -> None:
        super().__init__(config, context)
        self._cluster = SearchCluster(
            tuple(config.url),
            config.user,
            None if config.password is None else config.password.get_secret_value(),
            None if config.api_key is None else config.api_key.get_secret_value(),
            config.ca_file,
            connect_ms_max=config.connect_ms_max,
            request_ms_max=config.request_ms_max,
            retry_ms_max=config.retry_ms_max,
        )
        self._owner = f"{context.pipeline}/{context.output}"
        self._known_plan: IndexPlan | None = None
        self._uuids: dict[str, str | None] = {}  # by full name of a table, of its index

    def target_of(self, physical: str, source: str) -> tuple[str, str]:
        """See `NamesTargets.target_of`."""
        return self.config.url[0].rstrip("/"), index_name(self.config.index, physical, source)

    def check_table(self, table: TableSchema) -> None:
        """See `ChecksTables.check_table`."""
        IndexPlan(self._owner, key=self.config.key_choice).key_of(table)
        check_names(table)

    def open(self) -> None:
        """See `Output.open`. Raises `ConfigError` for a server of another kind."""
        self._known_plan = self._plan_for_server()
        self._control.make()

    def take_over(self, ledger: Mapping[str, Position], choice: Choice) -> None:
        """See `TakesOver.take_over`."""
        del choice
        shut_out_above(self._control, ledger, self.config.buckets)

    def close(self) -> None:
        """See `Output.close`."""
        self._known_plan = None
        self._uuids.clear()

    def _plan_for_server(self) -> IndexPlan:
        answer = self._cluster.client().ask("GET", "/")
        version = answer.get("version") or {}
        product = str(version.get("distribution") or "elasticsearch")
        number = tuple(int(part) for part in str(version.get("number", "0.0")).split(".")[:2])
        if product != self.product or number < _OLDEST[product]:
            raise ConfigError(
                f"outputs.{self.context.output}: at {self._cluster.urls[0]} is {product} {version.get('number')}, and "
                f"`type: {self.product}` is for {self.product} from {'.'.join(map(str, _OLDEST[self.product]))} on"
            )
        config = self.config
        return IndexPlan(
            self._owner,
            template=config.index,
            aliases=tuple(config.aliases),
            settings=as_json(config.settings),
            own=as_json(config.mapping),
            key=config.key_choice,
            soft=config.deletes == "soft",
            typed=product == "elasticsearch" and number[0] < _TYPED_BELOW,
            has_unsigned=number >= _UNSIGNED_SINCE[product],
            on_schema_change=config.on_schema_change,
            gc_deletes_s=config.gc_deletes_s,
            generation=uuid4().hex,
        )

    @property
    def _plan(self) -> IndexPlan:
        if self._known_plan is None:
            self._known_plan = self._plan_for_server()
        return self._known_plan

    @property
    def _control(self) -> ControlIndex:
        return ControlIndex(self._cluster.client(), self._owner, typed=self._plan.typed)

    @property
    def _indices(self) -> Indices:
        return Indices(self._cluster.client(), self._plan)

    @property
    def _held(self) -> HeldRows:
        return HeldRows(self._cluster.client(), typed=self._plan.typed)

    def _sweep(self, index: str) -> Sweep:
        return Sweep(self._cluster.client(), index, typed=self._plan.typed, soft=self._plan.soft)

    def part_writer(self) -> SearchWriter:
        """See `Output.part_writer`."""
        config = self.config
        return SearchWriter(
            config.buckets,
            self._cluster,
            self._plan,
            self.letters,
            _REFRESH[config.refresh],
            config.bulk_bytes_max,
            config.bulk_rows_max,
            config.on_error,
        )

    def replay(self, letters: Letters) -> Sequence[Letter]:
        """See `KeepsLetters.replay`. Letters from before their table was emptied are forgotten: a task that was given
        up may have written them since.
        """
        self.open()
        index = self._plan.name(*letters.source.split("/", 1))
        noted = self._control.read(EMPTIED, letters.source)
        below = (0, 0) if noted is None or noted["uuid"] != self._indices.uuid(index) else pair_of(noted)
        standing = tuple(letter for letter in letters.letters if letter.pair >= below)
        return self.part_writer().replay(replace(letters, letters=standing)) if standing else []

    def held(self, tables: Mapping[str, Noted | None]) -> Mapping[str, Held]:
        """See `Output.held`: what the control index says, and by which uuid each index is known."""
        places, claims = (self._control.read_all(kind, [*tables]) for kind in (PLACE, CLAIM))
        words = {}
        for name in tables:
            index = self._plan.name(*name.split("/", 1))
            document = places.get(name) or claims.get(name)
            uuid = self._indices.uuid(index) if document is not None or tables[name] is not None else None
            if uuid is None:
                continue
            known = places.get(name)
            if known is None or known["uuid"] != uuid:
                claim = claims.get(name) or {}
                words[name] = Held(None, uuid, claim.get("db", "") if claim.get("uuid") == uuid else "")
                continue
            place = place_at(pair_of(known), known["log"], known.get("txid", ""), int(known.get("ts_us", 0)))
            words[name] = Held(place, uuid, known.get("db", ""), known["way"], known.get("seed"))
        return words

    def take_name(self, before: OutputContext, tables: Collection[str]) -> int:
        """See `TakesName.take_name`. The server has no transactions: what stands under the old name goes last."""
        del tables
        owner, client, typed = f"{before.pipeline}/{before.output}", self._cluster.client(), self._plan.typed
        old = ControlIndex(client, owner, typed=typed)
        self._control.make()
        for name in old.names(FENCE):  # first: whoever writes by it ends
            old.remove(FENCE, name)
        kept = {kind: old.read_all(kind, old.names(kind)) for kind in (CLAIM, PLACE, EMPTIED, HELD)}
        for kind, documents in kept.items():
            for name, document in documents.items():
                self._control.write(kind, name, document)
        for document in (*kept[CLAIM].values(), *kept[PLACE].values()):
            self._indices.take_over(document["index"], owner)
        self._held.give(owner, self._owner, self._indices.uuid)
        for kind, documents in kept.items():
            for name in documents:
                old.remove(kind, name)
        return len({*kept[CLAIM], *kept[PLACE]})

    def find(
        self, physical: str, source: str, key: Mapping[str, Any], about: Collection[Pair]
    ) -> Sequence[Pair] | None:
        """See `FindsKeys.find`. A document that says that its row is gone is none."""
        del about
        (name,) = key_ids([pa.array([value.as_py()], value.type) for value in key.values()]).to_pylist()
        client, plan = self._cluster.client(), self._plan
        there = pairs_of_documents(client, plan.name(physical, source), [name], typed=plan.typed, only_alive=True)
        return [*there.values()]

    def follow_options(self, name: str) -> None:
        """See `FollowsOptions.follow_options`."""
        physical, source = name.split("/", 1)
        fields = self._indices.follow_options(self._plan.name(physical, source), name)
        if fields:
            logger_of("databus.pipeline").warning(
                "the mapping of an index was changed; its documents from before are found by it once they are written "
                f"again: databus rebuild FILE {self.context.output} {source}",
                output=self.context.output,
                table=name,
                fields=fields,
            )

    def tables(self) -> Collection[str]:
        """See `Removes.tables`: what was written of, or begun."""
        return {*self._control.names(PLACE), *self._control.names(CLAIM)}

    def remove(self, tables: Collection[str]) -> list[Location]:
        """See `Removes.remove`."""
        for name in tables:
            self._remove(name)
        return []

    def _remove(self, name: str) -> None:
        self.letters.release(name, _END)  # its rows come again, those of letters too
        self._control.remove(PLACE, name)
        self._control.remove(CLAIM, name)
        self._held.forget(self._owner, name)
        self._indices.remove(self._plan.name(*name.split("/", 1)))
        self._uuids.pop(name, None)
        self._known_plan = None  # so that tasks look again which indices there are

    def commit(self, batch: StagedBatch, tasks: Tasks) -> Written:
        """See `Output.commit`: all rows are there; what controls say of older ones is done now."""
        del tasks
        for change in () if batch.ahead is None else batch.ahead.changes:
            self._follow(batch, f"{batch.physical}/{change.after.source}", change)
        for item in batch.items:
            if isinstance(item, TableControl):
                self._apply(batch, item)
        seeds, marks = batch.seeds_after(), {}
        for source in dict.fromkeys(item.table.source for item in batch.items):
            uuid = self._note(batch, source, seeds)
            if uuid is not None:
                marks[f"{batch.physical}/{source}"] = Noted(batch.end.pair, uuid)
        if self.kept_letters is not None:
            self.kept_letters.check()
        return Written(marks=marks)

    def _note(self, batch: StagedBatch, source: str, seeds: Mapping[str, Seed]) -> str | None:
        """Note durably how far a table has come; returns the uuid of its index, None where no row of it has come yet.

        seeds: of the tables, behind the batch. Raises `CorruptData` if its index is another one than before.
        """
        name, index = f"{batch.physical}/{source}", self._plan.name(batch.physical, source)
        uuid = self._indices.uuid(index)
        if name not in self._uuids:
            before = self._control.read(PLACE, name)
            self._uuids[name] = None if before is None else before["uuid"]
        known = self._uuids[name]
        has_rows = any(isinstance(item, StagedRows) and item.table.source == source for item in batch.items)
        is_same = uuid == known if known is not None else not has_rows or self._indices.is_of(index, name)
        if not is_same:
            raise CorruptData(
                f"outputs.{self.context.output}: index {index} was removed, or made by somebody else, while it was "
                f"written, so that documents of {name} are missing. {self._how_to_rebuild(name)}"
            )
        self._uuids[name] = uuid
        if uuid is not None:
            self._write_place(batch, name, uuid, batch.end.pair, seeds.get(name))
        return uuid

    def _write_place(self, batch: StagedBatch, name: str, uuid: str | None, pair: Pair, seed: Seed | None) -> None:
        end, (physical, source) = batch.end, name.split("/", 1)
        index, way = self._plan.name(physical, source), batch.ways.get(name, "")
        place = {"index": index, "uuid": uuid, "log": end.log, "scn": pair[0], "seq": pair[1], "way": way}
        place |= {"db": end.uuid, "seed": end.snapshots.get(source) if seed is None else seed}
        if pair[0] == end.scn:
            place |= {"txid": end.txid, "ts_us": end.ts_us}
        self._control.write(PLACE, name, place)

    def _apply(self, batch: StagedBatch, control: TableControl) -> None:
        name = f"{batch.physical}/{control.table.source}"
        below = released_below(batch, control)
        if below is not None:
            self._delete_below(name, below)
        elif control.kind is ControlKind.SCHEMA:
            self._follow(batch, name, SchemaChange.of_control(control.pair, control.body, None, control.table))
        elif control.kind is ControlKind.GAP:
            self._pass_gap(name, control)

    def _delete_below(self, name: str, pair: Pair) -> None:
        """Remove what is older, the letters last: a replay may have read them already, and write them only now."""
        self._held.forget(self._owner, name, pair)
        index = self._plan.name(*name.split("/", 1))
        mine = {"uuid": self._indices.uuid(index), "scn": pair[0], "seq": pair[1]}
        self._control.change(EMPTIED, name, partial(_later, mine))
        sweep = self._sweep(index)
        if sweep.refresh():
            sweep.delete_below(pair)
            sweep.shut_out(self.letters.ids_below(name, pair), pair[0])
        self.letters.release(name, pair)

    def _pass_gap(self, name: str, control: TableControl) -> None:
        if control.missing is None or self.config.on_gap == "continue":
            return
        raise UnsupportedFeature(
            f"outputs.{self.context.output}: changes of {name} are missing ({control.missing}), so that its "
            f"index would be wrong. {self._how_to_rebuild(name)}. Or ask for a snapshot and say `on_gap: continue`: "
            f"the index is right again when that snapshot has ended"
        )

    def _follow(self, batch: StagedBatch, name: str, change: SchemaChange) -> None:
        """Give the index the fields of a changed table, and make its older documents into rows of today."""
        index = self._plan.name(*name.split("/", 1))
        mapping, key = self._indices.mapping(index), self._plan.key_of(change.after)
        if mapping is None or self.config.on_schema_change == "ignore":
            return
        made = DocumentChange.of(change, mapping, self._plan.mapping(change.after), key)
        if made.is_nothing:
            return
        if self.config.on_schema_change == "stop":
            raise UnsupportedFeature(
                f"outputs.{self.context.output}: the schema of {name} changed, and `on_schema_change` is stop. Say "
                f"follow or ignore; or: {self._how_to_rebuild(name)}"
            )
        if made.conflicts and not change.needs_snapshot:
            raise UnsupportedFeature(
                f"outputs.{self.context.output}: {name} changed its key, the type of a column, or the names of two "
                f"columns for each other ({', '.join(made.conflicts)}), and documents keep their ids, fields their "
                f"types. "
                f"{self._how_to_rebuild(name)}"
            )
        sweep = self._sweep(index)
        sweep.refresh()
        if change.needs_snapshot:  # all rows come again
            if made.conflicts:
                self._make_anew(batch, name, change)
                return
            self._held.forget(self._owner, name, change.pair)
            sweep.delete_below(change.pair)
        indices = self._indices
        indices.ready(name.partition("/")[0], change.after)
        if made.rewrites:
            count, limit = sweep.count_below(change.pair), self.config.rewrite_documents_max
            if count > limit:
                raise LimitExceeded(
                    f"outputs.{self.context.output}: the change of {name} needs {count} documents rewritten, more "
                    f"than rewrite_documents_max={limit}. Raise it and start again; or: {self._how_to_rebuild(name)}"
                )
            sweep.rewrite_below(change.pair, made)
        indices.note_change(index, name, change.after, change.pair, is_anew=False)

    def _make_anew(self, batch: StagedBatch, name: str, change: SchemaChange) -> None:
        """Have an empty index in the place of the table's, which a snapshot fills.

        Raises `ServiceUnavailable` where some of its rows are in this batch already: they are gone with the index.
        """
        self._remove(name)
        physical, source = name.split("/", 1)
        indices = self._indices
        index = indices.ready(physical, change.after)
        indices.note_change(index, name, change.after, change.pair, is_anew=True)
        self._write_place(batch, name, indices.uuid(index), change.pair, batch.seeds.get(name))
        rows = (item for item in batch.items if isinstance(item, StagedRows) and item.table.source == source)
        if any(item.last > change.pair for item in rows):
            raise ServiceUnavailable(
                f"outputs.{self.context.output}: the index of {name} was rebuilt for a change of its columns at "
                f"{change.pair} (SCN, _seq), and rows from behind that were in it already. They are written again"
            )

    def _how_to_rebuild(self, name: str) -> str:
        rebuild = f"databus rebuild FILE {self.context.output} {name}"
        return f"Rebuild the index: `{rebuild}` (FILE is the pipeline's file)"


class OpenSearchOutput(SearchOutput):
    """Keeps indices of OpenSearch."""

    product: ClassVar[str] = "opensearch"
    config_model: ClassVar[type[OutputConfig]] = OpenSearchConfig


class ElasticsearchOutput(SearchOutput):
    """Keeps indices of Elasticsearch."""

    product: ClassVar[str] = "elasticsearch"
    config_model: ClassVar[type[OutputConfig]] = ElasticsearchConfig


def _later(mine: Mapping[str, Any], there: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return mine if there is None or there["uuid"] != mine["uuid"] or pair_of(there) < pair_of(mine) else there
