"""All images of one key taken out of the stores: out of the log, out of all states, and out of what is left of others.

Killed half-way, the same call does the rest: a file is replaced before its note is, and removed after both.
"""

import hashlib
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from databus.bootstrap._config import LOG, STATE, BootstrapConfig
from databus.bootstrap._look_back import RowKey
from databus.bootstrap._table_past import TablePast
from databus.core import BUS_SEQ_MIN, DatabusError, LockHeld
from databus.disk import Location
from databus.pipeline import load_pipeline, take_ledgers, while_stopped
from databus.sinks import DeltaOutput, Erased, replaced_in
from databus.stores import NoteFolder, StateNote, StateTable, table_folder


@dataclass(frozen=True)
class Erasure:
    """What was erased."""

    rows: int
    """Images of the key, in the log store and in files of states."""
    files: int
    states: int
    last_scn: int
    """Of the last image."""
    is_still_there: bool
    """Whether the newest state had a row of this key: the source has it, and its next change comes again."""
    relay_scn: int | None
    """Where the relay's log begins now; None where the relay could not be asked."""


def erase(config: BootstrapConfig, name: str, text: str, reason: str) -> Erasure:
    """Rewrite every file that holds an image of a key. text: the key, such as `id = 7`.

    Raises `LockHeld` while the service runs.
    """
    with ExitStack() as held:
        try:
            held.enter_context(while_stopped(config.state, config.name))
        except LockHeld as error:
            raise LockHeld(
                f"{error}. It writes the files that `erase` rewrites, and a mirror has one writer: end `databus "
                f"bootstrap run {config.path.name}`, erase, and start it again. Meanwhile the relay keeps what the "
                "stores lack, and clients wait"
            ) from None
        if not config.pipeline_path.exists():  # the service has not run here
            config.write_pipeline(())
        take_ledgers(load_pipeline(config.pipeline_path).config)
        past = TablePast.of(config, name)
        key = RowKey.of(text, past)
        record = _Record(config.root / "notes" / past.physical, name, key, reason)
        record.put(done=False)
        notes = NoteFolder(config.root, past.physical)
        states = notes.states()
        log = _output(config, LOG).erase(past.physical, past.source, key.finds, ())
        named = {file for state in states if past.source in state.tables for file, _ in state.tables[past.source].files}
        there = _output(config, STATE).erase(past.physical, past.source, key.finds, named)
        changed = _renamed(notes, states, past.source, there)
        for store, erased in (("log", log), ("state", there)):
            folder = table_folder(config.root / store, past.physical, past.source)
            for file in erased.gone:
                (folder / file).remove()
        newest = {file for file, _ in states[-1].tables[past.source].files} if _has(states, past.source) else set()
        rows, files = log.rows + there.rows, len(log.gone) + len(there.gone)
        record.put(done=True, rows=rows, files=files)
        is_there = bool(newest & there.replaced.keys())
        last = max(log.last_scn, there.last_scn)
    return Erasure(rows, files, changed, last, is_there, _relay_scn(config, past.physical))


def _has(states: list[StateNote], source: str) -> bool:
    return bool(states) and source in states[-1].tables


def _output(config: BootstrapConfig, name: str) -> DeltaOutput:
    pipeline = load_pipeline(config.pipeline_path).config
    node = pipeline.nodes[f"outputs.{name}"]
    made = node.plugin(node.config, pipeline.context_of(name))
    assert isinstance(made, DeltaOutput)  # noqa: S101 - as the service's file has them
    return made


def _renamed(notes: NoteFolder, states: list[StateNote], source: str, erased: Erased) -> int:
    """Note those states again that had such files: their rows are counted otherwise, so they are other states."""
    count = 0
    known = list(states)
    for state in states:
        table = state.tables.get(source)
        if table is None or not any(name in erased.replaced for name, _ in table.files):
            continue
        scn, seq = state.position.pair
        earlier = (other.end + 1 for other in known if other.position.scn == scn)
        left: StateTable = replace(table, files=replaced_in(table.files, erased.replaced))
        made = replace(state, base=max(BUS_SEQ_MIN, seq + 1, *earlier), tables={**state.tables, source: left})
        notes.add(made)
        notes.remove(state)
        known.append(made)
        count += 1
    return count


def _relay_scn(config: BootstrapConfig, physical: str) -> int | None:
    relay = config.relay()
    try:
        return relay.head(physical).oldest.scn
    except DatabusError:
        return None  # it may be away; what was erased is erased
    finally:
        relay.close()


class _Record:
    """What is noted of an erasure: a hash of the key, and why."""

    def __init__(self, folder: Location, table: str, key: RowKey, reason: str) -> None:
        digest = hashlib.blake2b(f"{table}\n{key.text}".encode(), digest_size=8).hexdigest()
        self._path = folder / f"erased-{digest}.json"
        self._said = {"v": 1, "table": table, "key_hash": digest, "reason": reason}

    def put(self, *, done: bool, **counts: int) -> None:
        text = json.dumps({**self._said, "done": done, "at_us": time.time_ns() // 1000, **counts})
        self._path.write(text.encode())
