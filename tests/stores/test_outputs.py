"""Outputs in an object store pass the suite that those on a disk pass, and their readers need nothing of ours."""

import io
import time
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from databus.core import Checkpoint, ControlKind, LockHeld, ServiceUnavailable
from databus.disk import Storage
from databus.flow import Here, Stored, write_data_file
from databus.pipeline import OutputContext
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._ledger import Ledger
from databus.places import Position
from databus.sinks import DeltaConfig
from databus.sinks.delta import run_all
from databus.sinks.delta._table import DeltaTarget, Upkeep
from databus.sinks.files._output import FilesConfig
from databus.sinks.http._output import HttpConfig, HttpOutput
from databus.testing import OUTPUT_CHECKS, TcpProxy
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.feeds import bring
from tests.http.receiver import Receiver
from tests.outputs.harnesses import FROM, ByTask, ByTasks, DeltaHarness, FilesHarness, log_of, noted_of, order
from tests.stores.store import BUCKET, ObjectStore, late


def context(folder, storage):
    return OutputContext("shop", "copy", folder, storage)


def arrow_rows(store, folder):
    """The rows of Parquet files, by Arrow's own client of S3."""
    files = pyarrow.fs.S3FileSystem(
        endpoint_override=store.endpoint.removeprefix("http://"),
        scheme="http",
        region="eu-central-1",
        access_key=store.options["access_key_id"],
        secret_key=store.options["secret_access_key"],
    )
    found = files.get_file_info(pyarrow.fs.FileSelector(f"{BUCKET}/{folder}", allow_not_found=True))
    names = sorted(each.path for each in found if each.path.endswith(".parquet"))
    parts = [pq.read_table(io.BytesIO(files.open_input_stream(name).read())) for name in names]
    return [row for part in parts for row in part.to_pylist()]


class DeltaInStore(DeltaHarness):
    """prefix: of the tests' own in the bucket."""

    def __init__(self, folder, store, prefix, mode, **options):
        super().__init__(folder, mode, path=f"s3://{BUCKET}/{prefix}", **options)
        self.store = store
        self.prefix = prefix

    def make(self):
        return ByTasks(DeltaConfig(**self.options, **FROM), context(self.folder, self.store.storage))

    def read(self, physical, table):
        """By the engine alone, and the options that anybody gives it."""
        uri = f"s3://{BUCKET}/{self.prefix}/{table.source.rpartition('.')[2]}"
        return DeltaTable(uri, storage_options=self.store.engine_options).to_pyarrow_table().to_pylist()

    def full(self):
        return None


class FilesInStore(FilesHarness):
    def __init__(self, folder, store, prefix, **options):
        super().__init__(folder, "parquet", **options)
        self.options["path"] = f"s3://{BUCKET}/{prefix}"
        self.store = store
        self.prefix = prefix

    def make(self):
        return ByTask(FilesConfig(**self.options, **FROM), context(self.folder, self.store.storage))

    def read(self, physical, table):
        return arrow_rows(self.store, f"{self.prefix}/{table.source.rpartition('.')[2]}")

    def full(self):
        return None


MAKE = {
    "delta mirror": lambda *where: DeltaInStore(*where, "mirror"),
    "delta history": lambda *where: DeltaInStore(*where, "history"),
    "parquet": FilesInStore,
}


@pytest.fixture
def prefix(request):
    return "".join(c if c.isalnum() else "_" for c in request.node.name)


MANY_BATCHES = {"check_whole_log", "check_repeats", "check_restart_from_nothing", "check_goes_on_where_the_ledger_says"}
"""Hundreds of commits, each of which takes a store in Python a tenth of a second."""

FEW_BATCHES = [check for check in OUTPUT_CHECKS if check.__name__ not in {*MANY_BATCHES, "check_keys_of_every_type"}]


@pytest.mark.parametrize("check", FEW_BATCHES, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MAKE)
def test_output_conforms(name, check, tmp_path, store, prefix):
    check(MAKE[name](tmp_path, store, prefix))


@pytest.mark.soak
@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MAKE)
def test_output_conforms_over_many_batches(name, check, tmp_path, store, prefix):
    check(MAKE[name](tmp_path, store, prefix))


@pytest.mark.parametrize("name", ["größe", "订单", "a/b", "[ab]", "100%", "a%2Fb", "it's #1?"])
@pytest.mark.parametrize("kind", ["delta history", "parquet"])
def test_a_table_may_have_any_name(kind, name, tmp_path, store, prefix):
    table = replace(ORDERS, source=f"main.{name}")
    log = ChangeLog()
    for each in (1, 2):
        log.begin().insert(table, {"id": each, "note": None, "total": None})
    harness = MAKE[kind](tmp_path, store, prefix)
    for start in (0, 1):
        harness.make().write(log.batch(start, start + 1))
    output = harness.make()
    assert noted_of(output, f"shop/{table.source}").pair == log.position(2).pair
    (folder,) = output.remove([f"shop/{table.source}"])
    assert folder.names() == []


def process(harness):
    handle = OutputHandle("copy", harness.make(), harness.folder / "state")
    bring(handle)
    handle.open()
    return handle


def write(handle, batch):
    handle.write(batch)
    handle.advance(Checkpoint({batch.physical: batch.end}))


def test_of_two_writers_that_take_a_target_at_once_one_is_refused(tmp_path, store, prefix):
    """Neither has seen what the other wrote when it writes."""
    harness = MAKE["delta history"](tmp_path, store, prefix)
    log = log_of(1, 2, 3)
    handle = process(harness)
    write(handle, log.batch(0, 1))
    first, second = (Ledger.load(handle.ledger_path, "shop", "copy") for _ in range(2))
    first.take()
    with pytest.raises(LockHeld, match="has begun to write this output"):
        second.take()
    third = process(harness)
    write(third, log.batch(1, 2))
    with pytest.raises(LockHeld, match="has begun to write this output"):
        first.put("shop", first.positions["shop"])
    assert Ledger.load(handle.ledger_path, "shop", "copy").positions == {"shop": third.known("shop")}


def test_a_ledger_that_was_written_without_an_answer_is_not_taken_for_somebody_elses(store, prefix):
    """The connection ends after the store has written it, and before it says so."""
    address = urlsplit(store.endpoint)
    with TcpProxy(address.hostname, address.port) as proxy:
        path = ObjectStore(proxy.url).at(f"{prefix}/ledger.json")
        ledger = Ledger(path, "shop", "copy")
        ledger.take()
        for scn in range(1, 4):
            proxy.truncate_after(0)
            position = Position(log_of(*range(scn)).position(scn))
            with suppress(ServiceUnavailable):
                ledger.put("shop", position)
        ledger.put("shop", position)
        assert Ledger.load(path, "shop", "copy").positions["shop"] == position


def test_commit_that_the_store_carries_out_after_its_error_names_files_that_are_there(tmp_path, store):
    log = log_of(*range(6))
    one, two, three = log.batches([2, 4])
    with late(store.endpoint) as slow:
        there = Storage({"s3": {**store.options, "endpoint": slow.endpoint, "timeout": "1s"}})
        config = DeltaConfig(mode="mirror", path=f"s3://{BUCKET}/late", **FROM)
        patient = Storage({"s3": store.options})
        ByTasks(config, context(tmp_path, patient)).write(one)
        before = DeltaTable(f"s3://{BUCKET}/late/orders", storage_options=store.engine_options).version()
        slow.holds.set()
        with pytest.raises(ServiceUnavailable):
            ByTasks(config, context(tmp_path, there)).write(two)
        slow.release()
        deadline, commit = time.monotonic() + 60, f"late/orders/_delta_log/{before + 1:020d}.json"
        while not store.at(commit).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for batch in (two, three):
            ByTasks(config, context(tmp_path, patient)).write(batch)
    rows = DeltaInStore(tmp_path, store, "late", "mirror").read("shop", ORDERS)
    assert sorted(row["id"] for row in rows) == [*range(6)]


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_commit_that_is_carried_out_and_answered_by_an_error_is_no_other_writer(mode, tmp_path, store, prefix):
    """Who asks once more finds a commit there, which is its own."""
    log = log_of(1, 2, 3)
    with late(store.endpoint) as failing:
        there = Storage({"s3": {**store.options, "endpoint": failing.endpoint}})
        output = ByTasks(DeltaConfig(mode=mode, path=f"s3://{BUCKET}/{prefix}", **FROM), context(tmp_path, there))
        for at in range(2):  # the table is made, too
            failing.fails = 1
            output.write(log.batch(at, at + 1))
            assert failing.fails == 0
        output.write(log.batch(2, 3))
    rows = DeltaInStore(tmp_path, store, prefix, mode).read("shop", ORDERS)
    assert sorted(row["id"] for row in rows) == [1, 2, 3]


def test_a_store_that_is_busy_with_another_request_is_no_other_writer(tmp_path, store, prefix):
    """S3 answers 409 then, and writes nothing: of the ledger and of a commit."""
    log = log_of(1, 2)
    with late(store.endpoint) as busy:
        there = Storage({"s3": {**store.options, "endpoint": busy.endpoint}})
        output = ByTasks(DeltaConfig(mode="mirror", path=f"s3://{BUCKET}/{prefix}", **FROM), context(tmp_path, there))
        ledger = Ledger(context(tmp_path, there).locate(f"s3://{BUCKET}/{prefix}/ledger.json"), "shop", "copy")
        output.write(log.batch(0, 1))
        for _ in range(2):  # it is made, and replaced
            busy.busy = 1
            ledger.take()
            assert busy.busy == 0
        busy.busy = 1
        with pytest.raises(ServiceUnavailable, match="request that was under way"):
            output.write(log.batch(1, 2))
        output.write(log.batch(1, 2))
    rows = DeltaInStore(tmp_path, store, prefix, "mirror").read("shop", ORDERS)
    assert sorted(row["id"] for row in rows) == [1, 2]


def test_upkeep_removes_what_tasks_have_left_and_nothing_below_the_table(store, prefix):
    place = context(None, store.storage).locate(f"s3://{BUCKET}/{prefix}/t")
    target = DeltaTarget(place, "shop/main.t", "a", Upkeep(compact_every_commits=1, vacuum_hours=0), ("x", "y"))
    rows = pa.table({"v": [1, 2]})
    target.create(rows.schema)
    target.append(rows, Stored((1, 1), 1))
    left = write_data_file(place, rows)
    below = [write_data_file(place / "history", rows).name for _ in range(2)]
    (place / "notes.parquet").write(b"mine")
    run_all([target.maintain(joins=False)], Here())
    live = [uri.rpartition("/")[2] for uri in target.table.file_uris()]
    assert sorted(place.names()) == sorted(["_delta_log", "history", "notes.parquet", *live])
    assert left.name not in live
    assert sorted((place / "history").names()) == sorted(below)


@pytest.mark.parametrize("source", ["main.orders", "größe.订单 1%2F2=+&"])
def test_dead_letters_of_a_web_hook_may_be_in_a_store(store, tmp_path, source):
    """A parked key, a replay that is refused half-way, and a truncation that releases."""
    table, refused = replace(ORDERS, source=source), {"bad", "worse"}
    log = ChangeLog()
    for key, note in ((1, "bad"), (2, "x"), (3, "worse")):
        log.begin().insert(table, order(key, note))
    log.begin().update(table, order(1, "bad"), order(1, "y"))
    log.begin().control(ControlKind.TRUNCATE, table)
    with Receiver(lambda request: 422 if refused & {row["note"] for row in request.changes} else None) as receiver:
        given = {"url": receiver.url, "on_error": "dead_letter", "dead_letters": f"s3://{BUCKET}/letters-{len(source)}"}
        output = HttpOutput(HttpConfig(**given, **FROM), context(tmp_path, store.storage))
        for begin, end in ((0, 2), (2, 3), (3, 5)):
            write_batch(output, log.batch(begin, end))
        kept = [each for file in output.letters.files() for each in output.letters.read(file).letters]
        assert [(each.id, each.pair) for each in kept] == [("1", (1, 1)), ("3", (3, 1)), ("1", (4, 1)), ("1", (4, 2))]
        refused.remove("bad")
        for file in output.letters.files():
            output.letters.keep(file, output.replay(output.letters.read(file)))
        assert [file.source for file in output.letters.files()] == [f"shop/{source}"]
        assert output.letters.count() == 1
        taken = [row["note"] for request in receiver.seen for row in request.changes if row["id"] == 1]
        assert taken[-3:] == ["bad", "bad", "y"]
        write_batch(output, log.batch(5, 6))
        assert output.letters.count() == 0
