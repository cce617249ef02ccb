"""What goes wrong around answers: readers that are slow or stuck, files that cannot be read, disks that are full."""

import errno
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import DeltaError

from databus.bootstrap import BootstrapServer, NoteTaker
from databus.bootstrap._commands import ServiceCommands
from databus.bootstrap._kept_stores import PhysicalStores
from databus.bootstrap._noting import Stand
from databus.client import FollowConfig
from databus.core import (
    CorruptData,
    DatabusError,
    DiskFull,
    ServiceUnavailable,
    SourceCheckpoint,
    StreamCut,
    TooManyRequests,
)
from databus.disk import LocalLocation, Storage, StoreLocation
from databus.link import RelayClient
from databus.stores import NoteFolder, StateRows, StoreTable, file_of
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.followers import Follower
from tests.bootstrap.test_answers import MORE
from tests.bootstrap.test_service import TABLES, churn
from tests.client.conftest import wait_for
from tests.outputs.harnesses import room_for_files_of
from tests.stores.store import BUCKET, KEY, SECRET, denied

ORDERS = "shop/main.orders"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    with Shop(tmp_path_factory.mktemp("shop"), TABLES + MORE, answers_max=3).running() as shop:
        shop.captured()
        churn(shop, 1, 20)
        shop.fill()
        yield shop


def asked(shop):
    with RelayClient(shop.service_url).stream(PHYSICAL, "beginning", sources=(ORDERS,), follow=True) as stream:
        return [group for groups in stream for group in groups]


def reader_of(stack, shop):
    """A socket that has asked, with little room for what comes."""
    address = urlsplit(shop.service_url)
    sock = stack.enter_context(closing(socket.socket()))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    sock.connect((address.hostname, address.port))
    sock.sendall(
        f"GET /stream?physical={PHYSICAL}&start=beginning&output=frames HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    return sock


@pytest.fixture
def giving(shop, monkeypatch):
    """Have answers be so, and readers be cut off after so long."""

    def give(write_ms_max, *parts):
        monkeypatch.setattr(ServiceCommands, "_answer", lambda *_: ("state", "bootstrap:x", iter(parts)))
        serve = shop.config.options.serve.model_copy(update={"write_ms_max": write_ms_max})
        monkeypatch.setattr(shop.config.options, "serve", serve)

    return give


def open_answers(shop):
    return RelayClient(shop.service_url)._get("/admin/status", {})["open_answers"]


def test_who_reads_slowly_gets_all(shop, giving):
    """A part may take longer than `write_ms_max`, as long as something of it is read."""
    part = bytes(4 << 20)
    giving(300, *[part] * 3)
    with ExitStack() as stack:
        slow, count, last = reader_of(stack, shop), 0, b""
        while not last.endswith(b"0\r\n\r\n") and (content := slow.recv(100_000)):
            count, last = count + len(content), (last + content)[-5:]
            time.sleep(0.01)  # that it is slow is the point
        assert (count > 3 * len(part), last) == (True, b"0\r\n\r\n")


def test_who_reads_nothing_is_cut_off_and_others_are_answered_then(shop, giving, monkeypatch):
    """And nobody takes what came for the whole."""
    giving(1_000, *[bytes(4 << 20)] * 4)
    with ExitStack() as stack:
        stuck = [reader_of(stack, shop) for _ in range(3)]
        wait_for(lambda: open_answers(shop) == 3, "three answers")
        with pytest.raises(TooManyRequests, match="answers_max=3"):
            asked(shop)
        wait_for(lambda: open_answers(shop) == 0, "their ends")
        for each in stuck:
            left = bytearray()
            with suppress(ConnectionResetError):
                while content := each.recv(1 << 20):
                    left += content
            assert not left.endswith(b"0\r\n\r\n")
    monkeypatch.undo()
    assert asked(shop)


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), OSError(errno.EIO, "of the disk"), MemoryError()])
def test_an_answer_that_breaks_off_by_whatever_error_is_not_taken_for_the_whole(shop, monkeypatch, caplog, error):
    """Nor is a second response sent into it."""
    whole = asked(shop)
    batches = StateRows.batches

    def broken(*args):
        at, rows = next(batches(*args))
        yield at, rows.slice(0, 1)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(PhysicalStores, "look", looking(broken))
        with pytest.raises(StreamCut):
            asked(shop)
    assert "answer cut off" in caplog.text
    assert len(asked(shop)) == len(whole)
    assert RelayClient(shop.service_url).sources()


def looking(batches):
    """Looks whose rows of states come by `batches`."""
    look = PhysicalStores.look

    def made(self):
        found = look(self)
        rows = self._states
        return replace(found, stores=replace(found.stores, batches=lambda *args: batches(rows, *args)))

    return made


def test_a_file_that_cannot_be_opened_now_is_not_one_that_is_damaged(tmp_path, monkeypatch):
    """As where too many are open: whoever asks does so again, instead of ending for good."""
    path = LocalLocation(tmp_path / "f.parquet")
    with pytest.raises(CorruptData, match="missing"):
        file_of(path)
    monkeypatch.setattr(
        pa, "memory_map", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files"))
    )
    with pytest.raises(ServiceUnavailable, match="Too many open files"):
        file_of(path)


def test_what_a_store_says_of_a_table_is_told_without_its_secrets():
    """And whoever asks is not told that his token is wrong, because the service's keys are."""
    with denied() as endpoint:
        options = {"endpoint": endpoint, "region": "r", "access_key_id": KEY, "secret_access_key": SECRET}
        folder = StoreLocation.of(f"s3://{BUCKET}/t", Storage({"s3": options}))
        table = StoreTable(folder)
        with pytest.raises(ServiceUnavailable) as found, table._errors():
            raise DeltaError(f"Generic S3 error: <X>{SECRET}</X> {KEY}")
        assert SECRET not in str(found.value)
        assert KEY not in str(found.value)


def test_a_store_that_refuses_the_service_does_not_refuse_who_asks(tmp_path):
    with denied() as endpoint, Shop(tmp_path, TABLES).captured_by_a_relay() as shop:
        options = {"endpoint": endpoint, "region": "r", "access_key_id": KEY, "secret_access_key": SECRET}
        shop.config.file.storage["s3"] = options
        shop.config.options.path = f"s3://{BUCKET}/lake"
        with (
            BootstrapServer(shop.config) as server,
            pytest.raises(ServiceUnavailable, match="does not let us in") as found,
        ):
            RelayClient(server.url).sources()
        assert SECRET not in str(found.value)


def test_a_disk_that_is_full_when_a_state_is_noted_stops_nothing(tmp_path, monkeypatch):
    """What was noted before is served; the next look notes it."""
    with Shop(tmp_path, TABLES + MORE).running() as shop:
        churn(shop, 1, 10)
        shop.fill()
        before = shop.states()
        churn(shop, 10, 20)
        with monkeypatch.context() as patched:
            patched.setattr(NoteFolder, "_put", lambda self, *_: (_ for _ in ()).throw(DiskFull("no room")))
            with pytest.raises(DiskFull):
                shop.fill()
            assert shop.states() == before
            assert asked(shop)
        shop._noting = None
        assert shop.note() is not None
        assert len(shop.states()) == len(before) + 1


@pytest.mark.parametrize("size", [0, 1500, 2500])
def test_a_disk_that_is_full_while_the_stores_are_filled_costs_no_answer_and_no_row(tmp_path, monkeypatch, size):
    """Wherever the room ends: what is there is served, and is filled up when there is room again."""
    with Shop(tmp_path, TABLES + MORE).running() as shop:
        churn(shop, 1, 10)
        shop.fill()
        follower = Follower().follow(shop.url)
        churn(shop, 10, 30)
        end = shop.captured()
        with monkeypatch.context() as patch:  # the relay, in this process too, has no room while it idles either
            patch.setattr(shop, "captured", lambda: end)
            with room_for_files_of(size), pytest.raises(DatabusError):
                shop.fill()
        assert asked(shop)
        shop._noting = None
        shop.forget()
        for each in (follower, Follower()):
            assert each.follow(shop.url).is_as(shop, "main.orders", "main.stock")


def test_looking_goes_on_whatever_it_meets_and_whichever_source_it_is_of(tmp_path, monkeypatch, caplog):
    """A thread that ended would leave states to end in silence; a source that cannot be looked at is one of several."""
    with Shop(tmp_path, TABLES).captured_by_a_relay() as shop:
        shop.fill()
        monkeypatch.setattr("databus.bootstrap._noting._LOOK_S", 0.01)
        taker, looked = NoteTaker(shop.config), []

        def look(physical, log, state):
            looked.append(physical)
            if physical == "a":
                raise OSError(errno.EIO, f"of the disk, {len(looked) // 4}")

        monkeypatch.setattr(taker, "_look", look)
        monkeypatch.setattr("databus.bootstrap._noting._stands", lambda *_: {"b": Stand(), "a": Stand()})
        taker.start()
        try:
            wait_for(lambda: len(looked) >= 6, "several looks")
        finally:
            taker.close()
        assert looked[:4] == ["a", "b", "a", "b"]
        assert "the stores could not be looked at" in caplog.text


def test_many_who_look_at_the_notes_at_a_time_miss_none(tmp_path):
    """While others are noted and forgotten, whose files are not all there yet."""
    with Shop(tmp_path, TABLES).captured_by_a_relay() as shop:
        churn(shop, 1, 3)
        shop.fill()
        (state,) = shop.states()
        folder, lacking = NoteFolder(shop.config.root, PHYSICAL), []
        stop = threading.Event()

        def look():
            while not stop.is_set():
                try:
                    assert state.name in {each.name for each in folder.states()}
                    assert folder.pinned("main.orders") >= {name for name, _ in state.tables["main.orders"].files}
                except Exception as error:  # noqa: BLE001 - raised below
                    lacking.append(error)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for each in threads:
            each.start()
        writer = NoteFolder(shop.config.root, PHYSICAL)
        for number in range(15):
            more = replace(state, base=state.base + 1000 + number)
            writer.add(more)
            writer.forget([more])
        stop.set()
        for each in threads:
            each.join()
        assert lacking == []


def test_a_relay_that_never_answers_holds_up_neither_answers_nor_the_end(tmp_path, monkeypatch):
    with Shop(tmp_path, TABLES + MORE).running() as shop, socket.socket() as silent:
        churn(shop, 1, 10)
        shop.fill()
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(10)
        shop.config.file.relay.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("databus.bootstrap._noting._stands", lambda *_: {PHYSICAL: Stand()})
        taker = NoteTaker(shop.config)
        taker.start()
        asking, _ = silent.accept()
        with asking:
            assert asked(shop)
            began = time.monotonic()
            taker.close()
            assert time.monotonic() - began < 10, "well below the time that an answer may take"


def test_a_service_that_takes_a_question_and_never_answers_is_named(shop):
    """It is not called the relay, and whoever can do without it is told that it is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        service = RelayClient(shop.url, read_ms_max=100).bootstrap(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(
            ServiceUnavailable, match=r"bootstrap service at 127.0.0.1:\d+/range: .* no answer"
        ) as found:
            service.range(PHYSICAL, SourceCheckpoint())
        assert found.value.is_silent


def test_a_relay_that_is_away_is_not_waited_for_where_another_names_the_service(shop):
    """It may have what the other has lost; but so has the service."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        urls = [f"http://127.0.0.1:{nobody.getsockname()[1]}", shop.url]
        old = Follower().follow(shop.url)
        shop.forget()
        config = FollowConfig(backoff_first_ms=1, backoff_ms_max=5, reread_after_ms=50)
        for follower in (old, Follower()):
            follower.follow(urls, config=config)
        assert "since" in old.kinds


def test_rows_that_are_wide_are_read_few_at_a_time(tmp_path):
    """So that memory is bounded by bytes."""
    path = tmp_path / "f.parquet"
    texts = [f"{number}" * 500_000 for number in range(10, 50)]
    pq.write_table(pa.table({"id": range(40), "text": texts}), path, compression="zstd")
    found = list(file_of(LocalLocation(path)).batches(5, 20_000, None))
    assert max(batch.nbytes for _, batch in found) < 20 << 20
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    assert [row for _, batch in found for row in batch.column("id").to_pylist()] == [*range(5, 40)]


def test_a_disk_that_does_not_answer_holds_up_no_other_answer(shop, monkeypatch):
    """As many as one less than there may be; what the service says of itself comes, too."""
    is_back, waiting = threading.Event(), []

    def slow(path, digest):
        if "main.orders" in str(path):
            waiting.append(path)
            is_back.wait(30)
        return file_of(path, digest)

    monkeypatch.setattr("databus.stores._state_rows.file_of", slow)
    given = []
    threads = [threading.Thread(target=lambda: given.append(len(asked(shop)))) for _ in range(2)]
    try:
        for each in threads:
            each.start()
        wait_for(lambda: len(waiting) == 2, "the disk to be asked")
        service = RelayClient(shop.service_url)
        with service.stream(PHYSICAL, "beginning", sources=("shop/main.stock",), follow=True) as stream:
            assert [group for groups in stream for group in groups]
        assert open_answers(shop) == 2
        assert service.sources()
    finally:
        is_back.set()
        for each in threads:
            each.join()
    assert len({*given}) == 1
