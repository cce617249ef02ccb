"""What a receiver of web hooks sees: signatures, ids, order, formats, and what is done about its answers."""

import base64
import contextlib
import datetime as dt
import email.utils
import html
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
from standardwebhooks import Webhook

from databus.core import (
    AccessDenied,
    ConfigError,
    ControlKind,
    DatabusError,
    InputError,
    ServiceUnavailable,
    UnrepresentableValue,
)
from databus.core import UnsupportedFeature as Unsupported
from databus.flow import Bucket, DirectFeed, Ways
from databus.sinks.http._output import HttpConfig
from databus.testing._change_log import ORDERS, STOCK, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.certificates import Authority
from tests.http.receiver import Receiver
from tests.http.support import opened, output_of
from tests.outputs.harnesses import log_of, order

SECRET = "whsec_" + base64.b64encode(b"a key of the tests, of 32 bytes.").decode()


@pytest.fixture
def receiver():
    with Receiver() as found:
        yield found


def all_of(log):
    return log.batch(0, len(log.entries))


def written(output, *batches, number=0):
    """What one task sends of batches, once."""
    writer = output.part_writer()
    feed = DirectFeed(Ways(), writer, Bucket("shop", "hook", "shop", 0, writer.buckets))
    feed.write_ranges(lambda _: batches, pa.table({}), number)


def test_signatures_are_those_of_standard_webhooks_with_each_secret(receiver, tmp_path):
    other = "any text of ours"
    written(output_of(receiver, tmp_path, secret=[SECRET, other]), all_of(log_of(1, 2)))
    (request,) = receiver.seen
    assert [row["id"] for row in Webhook(SECRET).verify(request.body, request.headers)] == [1, 2]
    Webhook(other.encode()).verify(request.body, request.headers)
    assert request.headers["content-type"] == "application/json"


def test_the_same_request_has_the_same_id_and_another_one_another(receiver, tmp_path):
    log = log_of(1, 2, 3)
    output = output_of(receiver, tmp_path, secret=SECRET)
    written(output, all_of(log))
    written(output, all_of(log))
    written(output, log.batch(0, 2))
    ids = [request.headers["idempotency-key"] for request in receiver.seen]
    assert ids[0] == ids[1] != ids[2]
    assert ids == [request.headers["webhook-id"] for request in receiver.seen]
    assert receiver.seen[0].body == receiver.seen[1].body


@pytest.mark.parametrize("form", ["own", "debezium", "maxwell", "canal", "cloudevents", "cloudevents_debezium"])
def test_every_format_makes_the_same_bytes_again(receiver, tmp_path, form):
    log = log_of(1)
    log.begin().update(ORDERS, order(1), order(1, "y"))
    output = output_of(receiver, tmp_path, format=form)
    written(output, all_of(log))
    written(output, all_of(log))
    first, second = receiver.seen
    assert first.body == second.body
    assert len(first.changes) == (3 if form in ("own", "cloudevents") else 2)
    assert first.headers["content-type"] == (
        "application/cloudevents-batch+json" if form.startswith("cloudevents") else "application/json"
    )


def test_changes_of_all_tables_come_in_the_order_of_commits(receiver, tmp_path):
    log = ChangeLog()
    for number in range(6):
        log.begin().insert(ORDERS, order(number))
        log.insert(STOCK, {"Shelf no": str(number), "price": None, 'the "count"': 1, "raw": None})
    log.begin().control(ControlKind.TRUNCATE, STOCK)
    written(output_of(receiver, tmp_path, controls=True, request_rows_max=5), all_of(log))
    pairs = [(row["_commit_version"], row["_seq"]) for row in receiver.changes]
    assert pairs == sorted(pairs)
    assert [len(request.changes) for request in receiver.seen] == [5, 5, 3]
    assert receiver.changes[-1]["_control"]["kind"] == "truncate"


def test_one_change_a_request_and_a_path_a_table(receiver, tmp_path):
    log = log_of(1, 2)
    written(output_of(receiver, tmp_path, body="object", url=f"{receiver.url}/x/{{db}}/{{table}}?a=1"), all_of(log))
    assert [request.path for request in receiver.seen] == ["/x/main/orders?a=1"] * 2
    assert [json.loads(request.body)["id"] for request in receiver.seen] == [1, 2]


def test_a_table_with_a_dot_in_its_name_has_an_address_of_its_own(receiver, tmp_path):
    """A database's name ends at the first dot, as everywhere: `main.old.orders` went to where `orders` goes."""
    table = replace(ORDERS, source="main.old.orders")
    log = ChangeLog().begin()
    log.insert(table, order(1))
    written(output_of(receiver, tmp_path, url=f"{receiver.url}/{{db}}/{{table}}"), all_of(log))
    assert [request.path for request in receiver.seen] == ["/main/old.orders"]


def test_a_changed_key_is_a_delete_and_an_update_where_its_rows_are_in_two_buckets(receiver, tmp_path):
    """Of Debezium's envelope, which has both rows of an update in one message."""
    log = log_of(*range(8))
    log.begin()
    for number in range(8):
        log.update(ORDERS, order(number), order(number + 100))
    for number in range(3):
        written(output_of(receiver, tmp_path, format="debezium", buckets=3), all_of(log), number=number)
    state = {}
    for change in receiver.changes:
        if change["op"] == "d":
            state.pop(change["before"]["id"])
        else:
            state[change["after"]["id"]] = change["after"]
    assert sorted(state) == list(range(100, 108))


def test_rows_of_two_updates_are_not_taken_for_one(receiver, tmp_path):
    """Of keys that change in one transaction, the row before one and the row after another meet in a bucket."""
    log = log_of(*range(8))
    log.begin()
    for number in range(8):
        log.update(ORDERS, order(number), order(number + 100))
    for number in range(3):
        written(output_of(receiver, tmp_path, format="maxwell", buckets=3), all_of(log), number=number)
    updates = [change for change in receiver.changes if "id" in change.get("old", {})]
    assert all(change["data"]["id"] == change["old"]["id"] + 100 for change in updates)


def test_a_bucket_has_one_request_in_flight_and_keys_stay_in_order(tmp_path):
    log = ChangeLog()
    for number in range(60):
        log.begin().insert(ORDERS, order(number % 5, str(number))) if number < 5 else log.begin().update(
            ORDERS, order(number % 5, str(number - 5)), order(number % 5, str(number))
        )
    with Receiver(lambda request: time.sleep(0.002)) as receiver:
        output = output_of(receiver, tmp_path, buckets=2, request_rows_max=3)
        threads = [threading.Thread(target=written, args=(output, all_of(log)), kwargs={"number": n}) for n in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert receiver.in_flight_max <= 2
        assert len(receiver.changes) == 115
        by_key: dict[int, list[tuple[int, int]]] = {}
        for row in receiver.changes:
            by_key.setdefault(row["id"], []).append((row["_commit_version"], row["_seq"]))
        assert all(pairs == sorted(pairs) for pairs in by_key.values())


def test_a_busy_target_is_asked_again_with_the_same_id_and_no_sooner_than_it_says(tmp_path):
    at = []

    def answer(request):
        at.append(time.monotonic())
        if len(at) == 1:
            return 429, {"Retry-After": "1"}, "slow down"
        if len(at) == 2:
            soon = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
            return 503, {"Retry-After": email.utils.format_datetime(soon, usegmt=True)}, ""
        return None

    with Receiver(answer) as receiver:
        written(output_of(receiver, tmp_path, secret=SECRET, retry_ms_max=60_000), all_of(log_of(1)))
        assert at[1] - at[0] >= 1
        assert len({request.headers["webhook-id"] for request in receiver.seen}) == 1
        for request in receiver.seen:
            Webhook(SECRET).verify(request.body, request.headers)


def test_a_target_that_stays_busy_or_away_ends_the_attempt_in_time(tmp_path):
    with Receiver(lambda request: (429, {"Retry-After": "100000"}, "never")) as receiver:
        told = pytest.raises(ServiceUnavailable, match=r"takes no requests: status 429: never")
        output = output_of(receiver, tmp_path, retry_after_ms_max=50)
        with told:
            written(output, all_of(log_of(1)))
        url = receiver.url
    with pytest.raises(ServiceUnavailable, match="no answer") as found:
        written(output_of(receiver, tmp_path, url=f"{url}/hidden-path"), all_of(log_of(1)))
    assert "hidden-path" not in str(found.value)


def test_an_address_with_https_where_nothing_speaks_tls_is_said_to_be_one(receiver, tmp_path):
    output = output_of(receiver, tmp_path, url=receiver.url.replace("http:", "https:"))
    with pytest.raises(ServiceUnavailable, match="it does not speak TLS; is the https:// of `url` right"):
        written(output, all_of(log_of(1)))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_a_target_that_hangs_or_answers_byte_by_byte_is_given_up(tmp_path, said):
    """Whatever it takes and gives, in `request_ms_max`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve():
            with contextlib.suppress(OSError):
                while not over.is_set():
                    taken, _ = server.accept()
                    threading.Thread(target=drip, args=(taken,), daemon=True).start()

        def drip(taken):
            try:
                taken.sendall(said)
                while not over.wait(0.02):
                    if said:
                        taken.sendall(b"x")
            except OSError:
                return

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        output = output_of(None, tmp_path, url=url, request_ms_max=200, retry_ms_max=0)
        with pytest.raises(ServiceUnavailable, match=r"no whole answer within 0\.2 s|timed out"):
            written(output, all_of(log_of(1)))
        over.set()
        server.shutdown(socket.SHUT_RDWR)  # a thread that waits here still would take what comes for another's socket
        serving.join(10)


@pytest.mark.parametrize(
    ("status", "on_error", "error", "says"),
    [
        (400, "halt", UnrepresentableValue, r"\(1, 1\).*status 400: no such thing.*on_error: retry"),
        (422, "retry", ServiceUnavailable, "It is tried again"),
        (404, "halt", InputError, "Look at `url`"),
        (401, "retry", AccessDenied, "`headers` and `secret`"),
        (302, "retry", InputError, "Redirects are not followed"),
    ],
)
def test_a_refusal_is_told_with_its_changes_and_what_to_do(tmp_path, status, on_error, error, says):
    with Receiver(lambda request: (status, {"Location": "http://127.0.0.1:1/"}, "no such\nthing")) as receiver:
        with pytest.raises(error, match=says):
            written(output_of(receiver, tmp_path, on_error=on_error), all_of(log_of(1)))
        assert len(receiver.seen) == 1


def test_what_is_too_large_for_the_target_goes_in_smaller_requests_in_order(tmp_path):
    with Receiver(lambda request: 413 if len(request.body) > 700 else None) as receiver:
        written(output_of(receiver, tmp_path), all_of(log_of(*range(20))))
        taken = [row["id"] for request in receiver.seen if len(request.body) <= 700 for row in request.changes]
    assert taken == list(range(20))
    with Receiver(lambda request: 413) as receiver, pytest.raises(UnrepresentableValue, match=r"the 1 changes.*413"):
        written(output_of(receiver, tmp_path), all_of(log_of(1, 2)))


class Impatient(BaseHTTPRequestHandler):
    """Answers 413 before it has read what is too large for it, and hangs up, as web servers do."""

    protocol_version = "HTTP/1.1"
    limit = 200_000

    def log_message(self, *_):
        pass

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        if length > self.limit:
            self.close_connection = True
            self.send_response(413)
        else:
            self.server.taken += [row["id"] for row in json.loads(self.rfile.read(length))]
            self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_a_target_that_answers_before_it_has_read_what_is_too_large_is_heard(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Impatient) as server:
        server.taken = []
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        log = ChangeLog().begin()
        for number in range(100):
            log.insert(ORDERS, order(number, "x" * 100_000))
        written(output_of(server, tmp_path, request_bytes_max=1 << 25, request_ms_max=10_000), all_of(log))
        server.shutdown()
    assert server.taken == list(range(100))


def test_a_body_is_never_larger_than_the_limit(receiver, tmp_path):
    written(output_of(receiver, tmp_path, request_bytes_max=1_024), all_of(log_of(*range(50))))
    sizes = [len(request.body) for request in receiver.seen]
    assert max(sizes) <= 1_024
    assert len(sizes) < 20


def test_a_connection_that_the_target_has_closed_meanwhile_is_made_again(tmp_path):
    with Receiver(lambda request: (200, {"Connection": "close"}, "done")) as receiver:
        output = output_of(receiver, tmp_path)
        written(output, *log_of(1, 2, 3).batches([1, 2]))
        assert [row["id"] for row in receiver.changes] == [1, 2, 3]


def answered(server, answer):
    """Take a connection and answer the request that comes on it; returns the connection."""
    connection, _ = server.accept()
    connection.recv(1 << 20)
    connection.sendall(answer)
    return connection


def test_what_a_kept_connection_says_unasked_is_not_the_answer_to_the_next_request(tmp_path):
    """As of a proxy that says 408 before it hangs up, or a target that answers twice."""
    done, refused = (b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % each for each in (b"200 OK", b"400 No"))
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(60)
        output = output_of(None, tmp_path, url=f"http://127.0.0.1:{server.getsockname()[1]}")
        first, second = log_of(1, 2).batches([1])
        serving = pool.submit(answered, server, done)
        written(output, first)
        with serving.result() as kept:
            kept.sendall(done)
            serving = pool.submit(answered, server, refused)
            with pytest.raises(UnrepresentableValue, match="status 400"):
                written(output, second)
            serving.result().close()


@pytest.mark.parametrize("interim", [b"102 Processing", b"103 Early Hints"])
def test_what_a_target_says_while_it_works_is_not_its_answer(tmp_path, interim):
    said = b"HTTP/1.1 %s\r\nLink: </a>\r\n\r\n" % interim
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(60)
        output = output_of(None, tmp_path, url=f"http://127.0.0.1:{server.getsockname()[1]}")
        for status, told in ((b"204 Done", contextlib.nullcontext()), (b"400 No", pytest.raises(UnrepresentableValue))):
            serving = pool.submit(answered, server, said * 2 + b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status)
            with told:
                written(output, all_of(log_of(1)))
            serving.result().close()


CUT_ANSWERS = {
    "in the status": b"HTTP/1.1 200 O",
    "behind the status": b"HTTP/1.1 200 OK\r\n",
    "in a header": b"HTTP/1.1 200 OK\r\nContent-Le",
    "behind the headers": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "in the body": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nful",
    "far in the body": b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + 100_000 * b"x",
    "in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nful",
    "between chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nful\r\n",
    "behind what it says before": b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\n",
}


@pytest.mark.parametrize("cut", CUT_ANSWERS)
def test_a_request_whose_answer_is_cut_off_is_sent_again(tmp_path, cut):
    """A proxy that dies may have said 200 before the target has answered."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(10)
        output = output_of(None, tmp_path, url=f"http://127.0.0.1:{server.getsockname()[1]}")

        def serve():
            for answer in (CUT_ANSWERS[cut], whole):
                answered(server, answer).close()

        serving = pool.submit(serve)
        written(output, all_of(log_of(1)))
        serving.result()


def test_a_wait_that_no_clock_can_tell_is_none(tmp_path):
    answers = iter([(503, {"Retry-After": f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT"}, "")])
    with Receiver(lambda _: next(answers, None)) as receiver:
        written(output_of(receiver, tmp_path, retry_ms_max=60_000), all_of(log_of(1)))
        assert len(receiver.seen) == 2


@pytest.mark.parametrize("status", [400, 404, 401, 503])
def test_an_error_does_not_repeat_secrets_that_the_target_says_again(tmp_path, status):
    """Many say what they were sent: Express the address, gateways the header that they do not understand."""

    def answer(request):
        token = request.headers["authorization"]
        told = (request.path, html.escape(request.path), json.dumps({"path": request.path}), token, token.split()[1])
        return status, {}, f"{'Cannot POST'} {' '.join(told)}"

    with Receiver(answer) as receiver:
        options = {"headers": {"Authorization": "Bearer hidden-token"}, "on_error": "retry"}
        output = output_of(receiver, tmp_path, url=f"{receiver.url}/hidden-path?to=hidden-too&more=1", **options)
        with pytest.raises(DatabusError, match=f"status {status}: Cannot POST") as found:
            written(output, all_of(log_of(1)))
    assert "hidden" not in str(found.value)


def test_a_target_that_is_busy_and_asks_for_no_wait_is_not_asked_without_one(tmp_path):
    with Receiver(lambda request: (429, {"Retry-After": "0"}, "")) as receiver:
        with pytest.raises(ServiceUnavailable):
            written(output_of(receiver, tmp_path, retry_ms_max=300), all_of(log_of(1)))
        assert len(receiver.seen) < 10


def test_tls_by_an_authority_of_our_own_and_headers_that_are_nowhere_shown(tmp_path):
    authority = Authority(tmp_path)
    signed = authority.sign("receiver")
    with Receiver(certificate=(signed.certificate, signed.key)) as receiver:
        options = {"headers": {"Authorization": "Bearer hidden"}, "secret": "hidden too"}
        output = output_of(receiver, tmp_path, ca_file=str(authority.ca), **options)
        written(output, all_of(log_of(1)))
        assert receiver.seen[0].headers["authorization"] == "Bearer hidden"
        assert "hidden" not in repr(output.config) + repr(output.part_writer())
        with pytest.raises(ConfigError, match=r"is not trusted.*`ca_file`"):
            written(output_of(receiver, tmp_path), all_of(log_of(1)))


def test_changes_that_are_missing_stop_the_output_unless_told_otherwise(receiver, tmp_path):
    log = log_of(1)
    log.begin().control(ControlKind.GAP, ORDERS, reason="purged")
    with opened(receiver, tmp_path) as output, pytest.raises(Unsupported, match=r"main\.orders are missing.*purged"):
        write_batch(output, all_of(log))
    with opened(receiver, tmp_path, on_gap="continue") as output:
        write_batch(output, all_of(log))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "shop.internal/x"}, "expected http://"),
        ({"url": "http://{table}.internal/"}, "in the path alone"),
        ({"url": "http://shop.internal/{tabel}"}, "none of {physical}, {db} and {table}"),
        ({"url": "http://shop.internal:99999/"}, "the port from 1 to 65535"),
        ({"url": "http://name:hidden@shop.internal/"}, "give them in `headers`"),
        ({"headers": {"Content-Type": "x"}}, "set by the output itself"),
        ({"headers": {"X": "a\nb"}}, "printable ASCII"),
        ({"secret": "whsec_?"}, "no base64"),
        ({"controls": True, "format": "debezium"}, "`format: own` alone"),
        ({"ca_file": "x.pem"}, "https:// only"),
    ],
)
def test_options_that_make_no_sense_are_told(given, says):
    with pytest.raises(ValueError, match=says):
        HttpConfig.model_validate({"type": "http", "from": "shop", "url": "http://127.0.0.1/", **given})
