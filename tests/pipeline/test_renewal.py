"""Executors elsewhere while certificates and tokens are renewed: they show the last files that go together."""

import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from databus.core import AccessDenied, ConfigError
from databus.link import Access, RelayClient, travelling_name
from databus.spark import Shipment, tuned_session
from databus.testing import RelayProcess
from tests.certificates import Authority
from tests.client.conftest import wait_for
from tests.pipeline.cluster import Cluster, cluster, kill_all_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TOKEN = "0123456789-a-token"  # noqa: S105 - of this test's relay


@dataclass
class Job:
    """A session on a cluster with one executor, which does not see the driver's files, and what is sent there."""

    there: Cluster
    session: Any
    shipment: Shipment
    folder: Path
    url: str

    def run(self, task: Callable[[], Any]) -> Any:
        """What a task returns there. task: a function inside of another, which travels as it is."""
        return self.session.sparkContext.parallelize([0], 1).map(lambda _: task()).collect()[0]

    def tables(self) -> Any:
        """How many tables the relay says to have, asked from there; or why it says nothing."""
        url, files = self.url, self.shipment.access.options()

        def ask() -> Any:
            from databus.core import DatabusError
            from databus.link import Access, RelayClient

            try:
                return len(RelayClient(url, access=Access.of(**files)).sources())
            except DatabusError as error:
                return f"{type(error).__name__}: {error}"

        return self.run(ask)

    def put(self, name: str, content: str) -> None:
        """Put a file where Spark puts those that it sends."""

        def write() -> None:
            Path(os.environ["DATABUS_FILES"], name).write_text(content)

        self.run(write)

    def send_renewed(self) -> bool:
        return self.shipment.send_renewed(self.session, self.folder)


@contextlib.contextmanager
def job_of(tmp_path: Path, authority: Authority) -> Iterator[Job]:
    files = authority.folder
    (files / "token").write_text(TOKEN)
    signed = authority.sign("pipeline", hosts=())
    (files / "let-in.pem").write_bytes(authority.ca.read_bytes())
    tls = {**authority.sign("relay").relay, "client_ca_file": str(files / "let-in.pem")}
    source = {"type": "mock", "transactions_total": 1}
    access = Access.of(files / "token", authority.ca, signed.certificate, signed.key)
    with (
        RelayProcess(tmp_path / "relay", {"shop": source}, token_file=str(files / "token"), tls=tls) as relay,
        cluster(tmp_path / "cluster", [files]) as there,
    ):
        (tmp_path / "events").mkdir()
        settings = {
            **there.settings,
            "spark.cores.max": "1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (tmp_path / "events").as_uri(),
            "spark.pyspark.python": sys.executable,
        }
        shipment = Shipment(None, access)
        session = tuned_session(
            "renewal", there.master, folder=tmp_path / "spark", settings=settings, shipment=shipment
        )
        try:
            yield Job(there, session, shipment, tmp_path / "spark", relay.url)
        finally:
            session.stop()


@pytest.mark.nightly
def test_what_does_not_go_together_is_neither_sent_to_executors_nor_used_by_them(tmp_path: Path) -> None:
    """In a process of its own: one has one session, and other tests of this one may have theirs."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        alone.submit(renew, tmp_path).result()


def renew(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    authority = Authority(tmp_path / "driver")
    with job_of(tmp_path, authority) as job:
        _renew(tmp_path, authority, job)


def _renew(tmp_path: Path, authority: Authority, job: Job) -> None:
    access, files = job.shipment.access, authority.folder
    assert access.certificate_file is not None
    assert access.key_file is not None
    count = job.tables()
    assert isinstance(count, int), count

    # Spark fetches what is sent in any order, while other tasks run: here the certificate has come without its key.
    shown = [access.certificate_file, access.key_file]
    sizes = {travelling_name(path, 9): path.stat().st_size for path in shown}
    job.put(travelling_name(access.certificate_file, 9), access.certificate_file.read_text())
    job.put("databus-renewal-9", json.dumps(sizes))
    assert job.tables() == count

    # The certificate is renewed before its key, and the token's file is empty meanwhile.
    (tmp_path / "newer").mkdir()
    newer = Authority(tmp_path / "newer")
    renewed = newer.sign("pipeline", hosts=())
    (files / "let-in.pem").write_bytes(authority.ca.read_bytes() + newer.ca.read_bytes())
    shutil.copy(renewed.certificate, access.certificate_file)
    _settle(access.certificate_file)
    with pytest.raises(ConfigError, match=f"{access.certificate_file}, key_file {access.key_file}"):
        job.send_renewed()
    assert job.tables() == count
    shutil.copy(renewed.key, access.key_file)
    (files / "token").write_text("")
    _settle(access.key_file, files / "token")
    with pytest.raises(ConfigError, match="the token is empty"):
        job.send_renewed()
    assert job.tables() == count

    # All is there, the last part of it just now.
    (files / "token").write_text(TOKEN)
    assert not job.send_renewed(), "it may be half a token"
    _settle(files / "token")
    wait_for(lambda: _lets_in(job.url, access), "the relay that lets in both")
    assert job.send_renewed()
    (files / "let-in.pem").write_bytes(newer.ca.read_bytes())
    wait_for(lambda: job.tables() == count, "the executor that shows the renewed certificate")
    (victim,) = job.there.executors()
    kill_all_of(victim)
    assert job.tables() == count, "an executor that is started later shows it too"

    secrets = [TOKEN, renewed.key.read_text().splitlines()[1]]
    logs = [each for each in (tmp_path / "events").rglob("*") if each.is_file()]
    assert logs
    said = [*logs, *job.there.folder.rglob("std*"), *job.folder.glob("*.log")]
    assert [path for path in said for secret in secrets if secret in path.read_text(errors="replace")] == []
    copies = [each for each in job.there.folder.rglob("databus-*-token") if each.is_file()]
    assert copies
    assert [each for each in copies if each.stat().st_mode & 0o044] == []


def _settle(*paths: Path) -> None:
    """Have files be some seconds old."""
    for path in paths:
        os.utime(path, (time.time() - 5, time.time() - 5))


def _lets_in(url: str, access: Access) -> bool:
    with contextlib.suppress(AccessDenied):
        return bool(RelayClient(url, access=access).sources())
    return False
