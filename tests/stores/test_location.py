"""One contract for places on a disk and in a store, and what a store that fails becomes."""

import json
import pickle
import socket
from pathlib import Path

import pytest

from databus.core import AccessDenied, ConfigError, InputError, ServiceUnavailable
from databus.disk import LocalLocation, Storage, StoreLocation, WriteConflict, locate
from tests.stores.store import BUCKET, KEY, SECRET, answering, denied, late

NAMES = ("plain.json", "größe", "gr%C3%B6%C3%9Fe 1%2F2", "订单", "[ab]", "it's #1?", "a=3Db", "a+b & c")


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path):
    if request.param == "disk":
        return LocalLocation(tmp_path / "folder")
    return request.getfixturevalue("store").at(f"location/{request.node.name}")


def test_a_file_is_what_was_last_written(folder):
    file = folder / "a" / "b.json"
    assert (file.read(), file.exists(), folder.names()) == (None, False, [])
    file.write(b"one")
    file.write(b"two")
    assert (file.read().content, file.exists()) == (b"two", True)
    assert (folder.names(), file.parent.names()) == (["a"], ["b.json"])
    file.remove()
    file.remove()
    assert (file.read(), file.exists()) == (None, False)


def test_what_somebody_else_has_written_is_never_overwritten_unseen(folder):
    file = folder / "ledger.json"
    tag = file.put(b"one", after=None)
    assert file.read().tag == tag
    with pytest.raises(WriteConflict):
        file.put(b"mine", after=None)
    second = file.put(b"two", after=tag)
    with pytest.raises(WriteConflict):
        file.put(b"mine", after=tag)
    assert file.read().content == b"two"
    file.remove()
    with pytest.raises(WriteConflict):
        file.put(b"mine", after=second)
    assert not file.exists()


def test_a_file_appears_whole_or_not_at_all(folder):
    folder.make()
    with pytest.raises(RuntimeError), (folder / "rows").writing() as file:
        file.write(b"half")
        raise RuntimeError
    assert folder.names() == []
    seen = []
    with (folder / "rows").writing(before_visible=lambda: seen.append((folder / "rows").exists())) as file:
        file.write(b"x" * 20_000_000)
    assert (seen, len((folder / "rows").read().content)) == ([False], 20_000_000)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_kept_as_it_is(folder, name):
    (folder / name / "x").write(name.encode())
    assert (folder.names(), (folder / name / "x").read().content) == ([name], name.encode())
    assert (folder / name).name == name


def test_a_folder_goes_with_all_that_is_in_it_and_nothing_else(folder):
    for name in ("orders/a", "orders/b/c", "orders2/a"):
        (folder / name).write(b"x")
    (folder / "orders").remove_folder()
    (folder / "orders").remove_folder()
    assert folder.names() == ["orders2"]


def test_a_uri_names_what_it_says(tmp_path):
    storage = Storage({"s3": {"region": "a"}, "s3://lake": {"region": "b"}})
    assert str(locate("s3a://lake/x//y/", tmp_path, storage)) == "s3://lake/x/y"
    assert locate("s3://lake", tmp_path, storage).engine_options["region"] == "b"
    assert locate("s3://other/x", tmp_path, storage).engine_options["region"] == "a"
    assert str(locate("gs://lake/x", tmp_path, storage)) == "gs://lake/x"
    assert str(locate("abfss://c@acc.dfs.core.windows.net/x", tmp_path, storage)).startswith("abfss://c@acc")
    assert Path(locate("file:///a/b", tmp_path, storage)) == Path("/a/b")
    assert Path(locate("a/b", tmp_path, storage)) == tmp_path / "a/b"


@pytest.mark.parametrize(
    "uri", ["s3:/lake/x", "s3://", "s3://lake/a%20b", "s3://k:s@lake/x", "hdfs://h/x", "s3://l/../x"]
)
def test_a_uri_that_names_nothing_is_refused(uri, tmp_path):
    with pytest.raises(ConfigError):
        locate(uri, tmp_path, Storage())


# Failures


def calls(file):
    return [
        file.read,
        file.exists,
        file.parent.names,
        file.check,
        lambda: file.put(b"x", after=None),
        lambda: file.write(b"x"),
        file.parent.remove_folder,
    ]


def failing(endpoint):
    options = {"endpoint": endpoint, "region": "x", "access_key_id": KEY, "secret_access_key": SECRET}
    return StoreLocation.of("s3://lake/x/ledger.json", Storage({"s3": options}))


@pytest.mark.parametrize("number", range(7))
def test_wrong_keys_are_an_error_that_says_so_and_shows_none(number):
    with denied() as endpoint:
        file = failing(endpoint)
        with pytest.raises(AccessDenied, match=r"s3://lake/.*does not let us in.*keys under `storage`") as found:
            calls(file)[number]()
    told = f"{found.value}{found.value.__cause__}{file!r}"
    assert KEY not in told
    assert SECRET not in told


@pytest.mark.parametrize("number", range(7))
def test_a_store_that_does_not_answer_is_tried_again(number):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        file = failing(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ServiceUnavailable, match="the store does not answer"):
            calls(file)[number]()


def test_a_store_without_conditional_writes_is_refused():
    with (
        answering(501, b"<Error><Code>NotImplemented</Code></Error>") as endpoint,
        pytest.raises(ConfigError, match="does not write on a condition"),
    ):
        failing(endpoint).put(b"x", after=None)


def test_a_store_that_passes_over_conditions_is_refused(store):
    store.at("conditions/kept").write(b"x")
    store.at("conditions/kept").check_conditions()
    with answering(200, b"x") as endpoint, pytest.raises(ConfigError, match="passes over the condition of a write"):
        failing(endpoint).check_conditions()


def test_a_store_that_passes_over_one_of_the_conditions_is_refused(store):
    store.at("conditions/half").write(b"x")
    with late(store.endpoint, without="If-Match") as half:
        there = Storage({"s3": {**store.options, "endpoint": half.endpoint}})
        with pytest.raises(ConfigError, match=r"passes over the condition of a write \(`If-Match`\)"):
            StoreLocation.of(f"s3://{BUCKET}/conditions/half", there).check_conditions()


def test_in_googles_store_a_condition_names_a_generation():
    """It knows no ETag there."""
    asked = []
    with answering(200, b"x", {"x-goog-generation": "7"}, asked) as endpoint:
        key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        options = {"service_account_key": json.dumps({**key, "private_key_id": ""}), "allow_http": "true"}
        file = StoreLocation.of("gs://lake/ledger.json", Storage({"gs": options}))
        found = file.read()
        assert (found.tag, file.put(b"y", after=found.tag)) == ("7", "7")
    assert asked[-1]["x-goog-if-generation-match"] == "7"


def test_a_bucket_that_is_not_there_is_an_error_that_says_so(store):
    place = StoreLocation.of("s3://nothing-here/x", store.storage)
    for call in (place.check, lambda: place.put(b"x", after=None)):
        with pytest.raises(InputError, match="there is no such bucket"):
            call()


def test_options_are_never_shown_and_travel(store):
    file = store.at("secret/x")
    assert SECRET not in f"{file!r} {file} {store.storage!r}"
    file.write(b"x")
    assert pickle.loads(pickle.dumps(file)).read().content == b"x"  # noqa: S301 - our own
