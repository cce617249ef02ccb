"""The output `http` passes the suite that every output passes."""

import pytest

from databus.testing import OUTPUT_CHECKS
from tests.http.receiver import Receiver
from tests.http.support import HttpHarness

OPTIONS = {
    "one": {"request_rows_max": 7, "request_bytes_max": 2_048, "controls": True},
    "three": {"buckets": 3, "body": "lines", "on_error": "dead_letter"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
def test_a_web_hook_conforms(check, options, tmp_path):
    with Receiver() as receiver:
        check(HttpHarness(receiver, tmp_path, **options))
