"""Who a search output says that it is: that stands in requests, and nowhere else."""

import base64
import json

import pytest

from databus.core import ConfigError, DatabusError
from databus.pipeline import load_pipeline
from tests.search.proxy import SearchProxy
from tests.search.support import output_of

BASIC = base64.b64encode(b"databus:hidden").decode()
IDENTITIES = [({"user": "databus", "password": "hidden"}, BASIC), ({"api_key": "hidden-key"}, "hidden-key")]


@pytest.mark.parametrize("status", [400, 403, 503])
@pytest.mark.parametrize(("options", "token"), IDENTITIES)
def test_an_error_does_not_repeat_secrets_that_a_gateway_says_again(search_servers, tmp_path, options, token, status):
    """As some do that do not understand the header."""
    server = search_servers("opensearch-2.19")

    def instead(_method, _path):
        name, _, value = proxy.seen[-1][2]["Authorization"].partition(" ")
        return status, {"message": f"no key=value pair in Authorization header: '{name} {value}'; {value}"}

    with SearchProxy(server, instead=instead) as proxy, pytest.raises(DatabusError, match="no key=value") as found:
        output_of(proxy, tmp_path, retry_ms_max=0, **options).open()
    assert token not in str(found.value)


@pytest.mark.parametrize("key", ["", "hidden\nkey", "hidden key", "hidden\u20ac"])
def test_an_api_key_that_no_header_can_hold_is_told_without_it(tmp_path, key):
    """The HTTP library named it in its error, when the output was opened."""
    given = {"type": "opensearch", "from": "shop", "url": "http://search:9200", "api_key": key}
    path = tmp_path / "databus.yml"
    path.write_text(json.dumps({"name": "shop", "inputs": {"shop": {"type": "mock"}}, "outputs": {"index": given}}))
    with pytest.raises(ConfigError, match=r"outputs\.index\.api_key.*no API key has") as found:
        load_pipeline(path)
    assert "hidden" not in str(found.value)
