"""A pipeline on a standalone master with two workers: what executors need travels with the job, and they may die."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from databus.core import AccessDenied, ServiceUnavailable
from databus.link import RelayClient
from databus.testing import RelayProcess
from tests.certificates import Authority
from tests.flow.test_task_imports import NOBODY_S
from tests.pipeline.cluster import Cluster, captured, cluster, kill_all_of
from tests.pipeline.projects import Project
from tests.stores.s3proxy import s3proxy
from tests.stores.store import BUCKET, ObjectStore, object_store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

AStore = Callable[[Path], contextlib.AbstractContextManager[ObjectStore]]
STILL_S_MAX = 240.0  # without a file that is new or gone
TOKEN = "0123456789-a-token"  # noqa: S105 - of this test's relay
CERTIFICATE = {"certificate_file": "pipeline.pem", "key_file": "pipeline.key"}
DRIVER_DIES, FILE_FIRST = 0.2, 0.5  # in so many of the cycles
SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
}
PLUGIN = """
import os

import pyarrow as pa
import pyarrow.compute as pc


def note(batch):
    files = os.environ["DATABUS_FILES"]
    token = next(name for name in os.listdir(files) if name.endswith("-token"))
    with open(os.path.join(files, token)) as file:
        length = len(file.read().strip())
    told = pa.array([f"{os.environ['HOME']} {length}"] * batch.num_rows)
    return batch.append_column("place", told).filter(pc.greater(batch["total_cents"], 20000))
"""
COLUMNS = {
    "id": "int64", "customer_id": "int64", "status": "string", "total_cents": "int64", "placed_at": "string",
    "place": "string",
}  # fmt: skip


def file_of(relay: RelayProcess, there: Cluster, store: ObjectStore, prefix: str, **more: Any) -> str:
    """The pipeline's file. Its relay wants a token, and its targets are in a store."""
    root = f"s3://{BUCKET}/{prefix}"
    sections = {
        "name": "shop",
        "relay": {"url": relay.url, "token_file": "token", "ca_file": "ca.pem", **CERTIFICATE},
        "spark": {"master": there.master, "archive": "executors.zip", "settings": {**there.settings, **more}},
        "run": {"retries_max": 100, "retry_ms_min": 100, "retry_ms_max": 500},
        "storage": {"s3": store.options},
        "inputs": {
            "shop": {"type": "databus", "tables": ["shop/main.*"], "partitions": 4, "max_rows_per_trigger": 300}
        },
        "filters": {
            "some": {"type": "where", "from": "shop", "tables": ["orders"], "where": "id > 10"},
            "hidden": {"type": "mask", "from": "some", "tables": ["customers"], "redact": ["email"]},
            "noted": {
                "type": "python", "from": "shop", "table": "main.orders", "function": "plugin.py:note",
                "columns": COLUMNS,
            },
        },
        "outputs": {
            "history": {
                "type": "delta", "from": "hidden", "mode": "history", "lane": "tables", "path": f"{root}/history",
            },
            "copy": {"type": "delta", "from": "shop", "mode": "mirror", "lane": "tables", "path": f"{root}/copy"},
            "large": {"type": "delta", "from": "noted", "mode": "history", "path": f"{root}/large"},
        },
    }  # fmt: skip
    return yaml.safe_dump(sections)


class Driver:
    """A run of the pipeline in a process of its own."""

    def __init__(self, project: Project, lake: "Lake", test: contextlib.ExitStack) -> None:
        test.callback(self.close)
        self.lake = lake
        self.log = project.folder / "driver.log"
        with self.log.open("ab") as out:
            command = [sys.executable, "-m", "databus.cli", "run", str(project.path)]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, cwd=project.folder)

    def wait_for(self, is_there: Any, what: str) -> None:
        seen, deadline = None, 0.0
        while not is_there():
            assert self.process.poll() is None, self.told()
            if (found := self.lake.files()) != seen:
                seen, deadline = found, time.monotonic() + STILL_S_MAX
            assert time.monotonic() < deadline, f"{what}: {self.told()}"
            time.sleep(0.3)  # neither a store nor a log tells when something is in it

    def told(self) -> str:
        return self.log.read_text()[-3000:]

    def close(self) -> None:
        """Whatever has become of it, it ends."""
        self.process.kill()
        self.process.wait()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


class Lake:
    """What is in the store, read by the engine itself. filters: what passes of orders."""

    def __init__(self, project: Project, store: ObjectStore, prefix: str) -> None:
        self._project, self._store, self._prefix = project, store, prefix

    def rows(self, table: str) -> list[dict[str, Any]]:
        uri = f"s3://{BUCKET}/{self._prefix}/{table}"
        if not DeltaTable.is_deltatable(uri, storage_options=self._store.engine_options):
            return []
        return DeltaTable(uri, storage_options=self._store.engine_options).to_pyarrow_table().to_pylist()

    def notes(self, number: int) -> set[str | None]:
        """What the history has of an order's added column."""
        return {row.get("note") for row in self.rows("history/orders") if row["id"] == number}

    def held(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """What the changes add up to. No change stands there twice."""
        rows = sorted(self.rows(table), key=lambda row: (row["_commit_version"], row["_seq"]))
        pairs = [(row["_commit_version"], row["_seq"]) for row in rows]
        assert len(set(pairs)) == len(pairs)
        last = {row[columns[0]]: row for row in rows}
        held = [row for row in last.values() if row["_change_type"] in ("insert", "update_postimage")]
        return sorted((tuple(row[name] for name in columns) for row in held), key=repr)

    def copied(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """What the mirror holds."""
        return sorted((tuple(row[name] for name in columns) for row in self.rows(f"copy/{table}")), key=repr)

    def are_whole(self) -> bool:
        select = self._project.select
        columns = ("id", "customer_id", "status", "total_cents")
        named = ", ".join(columns)
        return (
            self.held("history/orders", *columns) == select(f"SELECT {named} FROM orders WHERE id > 10")
            and self.held("history/customers", "id", "city") == select("SELECT id, city FROM customers")
            and self.held("history/stock", "product_id", "quantity") == select("SELECT product_id, quantity FROM stock")
            and self.copied("orders", *columns) == select(f"SELECT {named} FROM orders")
            and self.held("large/orders", *columns) == select(f"SELECT {named} FROM orders WHERE total_cents > 20000")
        )

    def files(self) -> set[str]:
        """Of orders, also those that no commit names."""
        return {name for name in self._store.at(f"{self._prefix}/history/orders").names() if name.endswith(".parquet")}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "driver"
    folder.mkdir()
    made = Project(folder, "outputs: {}")
    (folder / "token").write_text(TOKEN)
    (folder / "plugin.py").write_text(PLUGIN)
    subprocess.run([sys.executable, "-m", "databus.cli", "archive", str(folder / "executors.zip")], check=True)
    return made


@contextlib.contextmanager
def set_up(
    folder: Path, project: Project, a_store: AStore = object_store, **settings: str
) -> Iterator[tuple[Cluster, Lake]]:
    """A relay that has read the shop, a store, and a cluster; the pipeline's file names them."""
    source = {"type": "sqlite", "path": str(project.database)}
    files = project.folder
    authority = Authority(files)
    authority.sign("pipeline", hosts=())
    let_in = files / "let-in.pem"
    let_in.write_bytes(authority.ca.read_bytes())
    tls = {**authority.sign("relay").relay, "client_ca_file": str(let_in)}
    relay = RelayProcess(folder / "relay", {"shop": source}, token_file=str(files / "token"), tls=tls)
    there = cluster(folder / "cluster", [project.folder])
    with a_store(folder) as store, there as made, relay:
        captured(
            RelayClient(relay.url, token=TOKEN, ca_file=authority.ca, **authority.sign("test").client), project.rows()
        )
        project.path.write_text(file_of(relay, made, store, "lake", **settings))
        yield made, Lake(project, store, "lake")


def renew_certificates(folder: Path, project: Project, driver: Driver, there: Cluster) -> None:
    """Another authority signs the pipeline's certificate, and the relay lets in nobody else any more."""
    let_in = project.folder / "let-in.pem"
    (folder / "newer").mkdir()
    newer = Authority(folder / "newer")
    old = {name: str(folder / path) for name, path in CERTIFICATE.items()}
    for path in CERTIFICATE.values():
        (folder / path).write_bytes((project.folder / path).read_bytes())
    renewed = newer.sign("pipeline", hosts=())
    url = yaml.safe_load(project.path.read_text())["relay"]["url"]

    def lets_in(certificate: dict[str, str]) -> bool:
        try:
            RelayClient(url, token=TOKEN, ca_file=project.folder / "ca.pem", **certificate).sources()
        except (AccessDenied, ServiceUnavailable):
            return False
        return True

    let_in.write_bytes(let_in.read_bytes() + newer.ca.read_bytes())
    driver.wait_for(lambda: lets_in(renewed.client), "the relay that lets in both")
    for before, path in ((renewed.certificate, "pipeline.pem"), (renewed.key, "pipeline.key")):
        shutil.copy(before, project.folder / f"{path}.new")
        (project.folder / f"{path}.new").replace(project.folder / path)
    driver.wait_for((project.state / "spark" / "databus-renewal-1").exists, "the driver that sends the renewed files")
    project.work(10)
    driver.wait_for(lambda: any(there.folder.rglob("databus-renewal-*")), "executors that were sent the renewed files")
    let_in.write_bytes(newer.ca.read_bytes())
    driver.wait_for(lambda: not lets_in(old), "the relay that lets in the renewed certificate alone")


@pytest.mark.nightly
def test_executors_elsewhere_do_the_work_and_one_that_dies_changes_nothing(
    tmp_path: Path, project: Project, seed: int
) -> None:
    with set_up(tmp_path, project) as (there, lake), contextlib.ExitStack() as test:
        driver = Driver(project, lake, test)
        driver.wait_for(lambda: lake.rows("history/orders"), "the first rows")
        project.execute("ALTER TABLE orders ADD COLUMN note TEXT", "UPDATE orders SET note = 'new' WHERE id = 20")
        before = lake.files()
        project.work(150)
        driver.wait_for(lambda: lake.files() - before, "a file of the rows behind the new column")
        kill_all_of(random.Random(seed).choice(there.executors()))
        driver.wait_for(lake.are_whole, "all rows")
        renew_certificates(tmp_path, project, driver, there)
        project.work(40)
        driver.wait_for(lake.are_whole, "all rows that came after the renewal")
        driver.wait_for(lambda: "new" in lake.notes(20), "the table, read anew with its new column")
        assert driver.end() == 0, driver.told()
        assert lake.notes(20) >= {None, "new"}
        assert {row["email"] for row in lake.rows("history/customers")} == {None}
        assert {row["place"] for row in lake.rows("large/orders")} == {f"{there.folder / 'home'} {len(TOKEN)}"}
        imported = there.imported()
        assert "databus.flow" in imported
        assert sorted(name for name in imported if name.startswith(NOBODY_S)) == []
        assert not (project.folder / "s3:").exists()
        assert "Lost executor" in (project.state / "spark" / "spark.log").read_text()


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_a_cluster_that_loses_executors_and_drivers_all_the_time_holds_what_happened(
    tmp_path: Path, project: Project, seed: int
) -> None:
    dice = random.Random(seed)
    with set_up(tmp_path, project, s3proxy, **SPECULATIVE) as (there, lake), contextlib.ExitStack() as test:
        driver = Driver(project, lake, test)
        for cycle in range(int(os.environ.get("CYCLES", "50"))):
            if cycle % 10 == 5:
                project.execute(f"ALTER TABLE orders ADD COLUMN extra_{cycle} TEXT")
            before = lake.files()
            project.work(dice.randint(10, 150))
            driver.wait_for(there.working, "executors that work")
            if dice.random() < FILE_FIRST:
                driver.wait_for(lambda before=before: lake.files() - before, "a file")
            else:
                time.sleep(dice.uniform(0, 4))  # whatever is being done then is what is cut off
            if victims := there.working() or there.executors():
                kill_all_of(dice.choice(victims))
            if dice.random() < DRIVER_DIES:
                driver.end(signal.SIGKILL)
                driver = Driver(project, lake, test)
            if cycle % 5 == 4:
                driver.wait_for(lake.are_whole, f"all rows of cycle {cycle}")
                print(f"cycle {cycle}: whole after {len(lake.rows('history/orders'))} changes of orders")  # noqa: T201 - hours of soak show that they go on
        driver.wait_for(lake.are_whole, "all rows")
        assert driver.end() == 0, driver.told()
