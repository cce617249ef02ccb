"""Addresses that a run cannot, or must not, answer at, and relays that it cannot read, are told with their line."""

import pytest

from databus.core import ConfigError
from databus.pipeline import run, validate
from databus.testing.shop import create_shop
from tests.pipeline.validated import GOOD, pipeline, problems_of, written


@pytest.fixture(autouse=True)
def shop(tmp_path) -> None:
    """The database that the files here name."""
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=0)


HTTP = {
    "a port alone": (
        "11116",
        "",
        'expected HOST:PORT, such as 127.0.0.1:11116, with a port up to 65535; found "11116"',
    ),
    "a port too high": ("127.0.0.1:99999", "", "expected HOST:PORT, such as 127.0.0.1:11116, with a port up to"),
    "an address for a browser": ("http://127.0.0.1:11116", "", '"http://127.0.0.1" is neither an IP address nor the'),
    "an IP address that is none": ("127.0.0.300:11116", "", '"127.0.0.300" is neither an IP address nor the name of'),
    "the relay's own": (
        "localhost:11115",
        "listen: '127.0.0.1:11115'",
        "localhost:11115 is where the relay listens (127.0.0.1:11115); choose another port",
    ),
    "where the relay listens everywhere": (
        "127.0.0.1:11115",
        "listen: '0.0.0.0:11115', token_file: token",
        "127.0.0.1:11115 is where the relay listens (0.0.0.0:11115); choose another port",
    ),
    "open to everybody": (
        "0.0.0.0:11116",
        "",
        "0.0.0.0 can be reached from other machines; set relay.token_file, or serve at 127.0.0.1:11116",
    ),
}


@pytest.mark.parametrize("case", HTTP)
def test_an_address_where_a_run_cannot_or_must_not_answer_is_told_with_its_line(tmp_path, case):
    address, relay, told = HTTP[case]
    (tmp_path / "token").write_text("0123456789")
    path = written(tmp_path, pipeline(f"relay: {{{relay}}}\nrun:\n  http: '{address}'\n"))
    (found,) = [each for each in validate(path) if "in clear" not in each.message]
    assert (found.path, found.line, found.is_warning) == ("run.http", 5, False)
    assert found.message.startswith(told)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:11116", "localhost:11116", "0.0.0.0:11116", "me.lan:11116"])
def test_an_address_where_a_run_may_answer_is_no_problem(tmp_path, address):
    (tmp_path / "token").write_text("0123456789")
    relay = "relay: {listen: '127.0.0.1:11115', token_file: token}\n"
    assert problems_of(tmp_path, pipeline(f"{relay}run: {{http: '{address}'}}\n")) == []


def test_a_run_does_not_answer_where_the_relay_that_it_reads_listens(tmp_path):
    text = """
        relay: {url: 'http://127.0.0.1:11115'}
        run: {http: '127.0.0.1:11115'}
        inputs: {shop: {type: databus}}
        outputs: {n: {type: mock, from: shop}}
        """
    (found,) = problems_of(tmp_path, text)
    assert found.startswith("run.http: 127.0.0.1:11115 is where the relay listens")


def test_the_option_for_an_address_is_checked_like_the_file(tmp_path):
    with pytest.raises(ConfigError, match=r"^--http: 0\.0\.0\.0 can be reached from other machines"):
        run(written(tmp_path, GOOD), http="0.0.0.0:11116")


RELAYS = {
    "none at all": ("", "relay: there is none to read: name one"),
    "two": (
        "sources: {shop: {type: mock}}\nrelay: {url: 'http://relay:11115'}",
        "relay.url: names a relay that runs elsewhere, and `sources` asks for one here",
    ),
    "open to everybody": (
        "sources: {shop: {type: mock}}\nrelay: {listen: '10.0.0.1:11115'}",
        "relay.token_file: missing: 10.0.0.1 can be reached from other machines",
    ),
    "a token that is not there": (
        "sources: {shop: {type: mock}}\nrelay: {token_file: nowhere}",
        "relay.token_file: ",
    ),
}


@pytest.mark.parametrize("case", RELAYS)
def test_a_relay_that_cannot_be_read_is_refused(tmp_path, case):
    text, expected = RELAYS[case]
    found = problems_of(tmp_path, f"{text}\ninputs: {{a: {{type: databus}}}}\noutputs: {{n: {{type: mock, from: a}}}}")
    assert [line for line in found if line.startswith(expected)], found


OF_TLS = {
    "relay: {url: 'https://relay.internal:11115', token_file: token, ca_file: ca.pem}": [],
    "relay: {url: 'https://relay.internal', ca_file: gone.pem}": ["relay.ca_file: ", "there is no such file"],
    "relay: {url: 'http://relay.internal', ca_file: ca.pem}": ["relay: ca_file is of use with TLS only"],
    "relay: {url: 'https://relay.internal', key_file: ca.pem}": ["relay: key_file ", "give certificate_file too"],
    "relay: {url: 'https://relay.internal', tls: {key_file: ca.pem}}": ["relay.tls: is the certificate of a relay"],
    "relay: {url: 'http://relay.internal', token_file: token}": [
        "relay.url: the token and all rows cross the network in clear (relay.internal)"
    ],
    "relay: {url: 'http://localhost', token_file: token}": [],
    "relay: {listen: '10.0.0.1:0', token_file: token}": ["relay.listen: the token and all rows cross the network"],
    "relay: {listen: '10.0.0.1:0', token_file: token, tls: {certificate_file: ca.pem, key_file: ca.pem}}": [],
    "relay: {tls: {certificate_file: ca.pem}}": ["relay.tls.key_file: "],
    "relay: {tls: {certificate_file: ca.pem, key_file: gone.pem}}": ["relay.tls.key_file: ", "no such file"],
    "relay: {tls: {certificate: ca.pem}}": ["relay.tls.certificate: "],
}


@pytest.mark.parametrize("relay", OF_TLS)
def test_what_a_relay_with_tls_needs_is_known_before_anything_starts(tmp_path, relay):
    (tmp_path / "token").write_text("12345678abc")
    (tmp_path / "ca.pem").write_text("")
    sources = "" if "url:" in relay else "sources: {shop: {type: mock}}"
    nodes = "inputs: {shop: {type: databus}}\noutputs: {n: {type: mock, from: shop}}"
    said = " | ".join(problems_of(tmp_path, f"{relay}\n{sources}\n{nodes}"))
    assert all(each in said for each in OF_TLS[relay])
    assert bool(said) == bool(OF_TLS[relay]), said


IN_STORES = GOOD.replace("lake/mirror", "s3://lake/mirror").replace("lake/big", "file:///mnt/lake/big")
ELSEWHERE = "spark://host:7077"


def of_cluster(folder, text, master=ELSEWHERE):
    return [each for each in problems_of(folder, text, master=master, offline=True) if "in clear" not in each]


def test_a_cluster_needs_a_relay_that_its_executors_reach(tmp_path):
    assert of_cluster(tmp_path, IN_STORES) == [
        (
            "relay.listen: executors of spark://host:7077 cannot reach a relay on 127.0.0.1; listen on an address of "
            "this machine and set `token_file`, or name a relay that runs elsewhere (`relay: {url: ...}`)"
        )
    ]
    (tmp_path / "token").write_text("12345678abc")
    elsewhere = IN_STORES.replace("sources:", "relay: {listen: '10.0.0.1:0', token_file: token}\nsources:")
    assert of_cluster(tmp_path, elsewhere) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_relay_that_is_named_by_the_loopback_is_another_one_for_each_machine(tmp_path, host):
    text = f"relay: {{url: 'http://{host}:11115'}}\ninputs: {{shop: {{type: databus}}}}\n"
    text += "outputs: {n: {type: mock, from: shop}}"
    (said,) = of_cluster(tmp_path, text, "yarn")
    assert said.startswith("relay.url: executors of yarn are on other machines")
    assert of_cluster(tmp_path, text.replace(host, "relay.internal"), "yarn") == []


@pytest.mark.parametrize(
    "master", ["local[2]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "spark://[::1]:7077"]
)
def test_executors_on_this_machine_see_its_folders_and_its_loopback(tmp_path, master):
    assert of_cluster(tmp_path, GOOD, master) == []


@pytest.mark.parametrize(
    "master", [ELSEWHERE, "spark://127.0.0.1:7077,host:7077", "yarn", "k8s://https://127.0.0.1:6443"]
)
def test_a_folder_of_this_machine_is_no_target_for_executors_elsewhere(tmp_path, master):
    text = "relay: {url: 'http://relay.internal'}\n" + GOOD.replace(
        "sources:\n  shop: {type: sqlite, path: shop.db}\n", ""
    )
    assert of_cluster(tmp_path, text, master) == [
        (
            f"outputs.{name}.path: executors of {master} do not see folders of this machine; write the URI of a store, "
            f"such as s3://BUCKET/{path}, or file:///FOLDER for one that all machines have mounted there"
        )
        for name, path in (("bigs", "lake/big"), ("copy", "lake/mirror"))
    ]


def test_an_archive_that_is_not_there_is_missed_with_the_command_that_makes_it(tmp_path):
    (said,) = of_cluster(tmp_path, GOOD + "spark: {archive: executors.zip}", "local[2]")
    assert said.startswith("spark.archive: ")
    assert said.endswith("`databus archive executors.zip` makes it")


def test_the_state_is_a_folder_of_this_machine(tmp_path):
    (said,) = of_cluster(tmp_path, GOOD + "state: s3://lake/state", "local[2]")
    assert said.startswith("state: s3://lake/state is not a folder of this machine")
    assert of_cluster(tmp_path, GOOD + f"state: file://{tmp_path}/state", "local[2]") == []
