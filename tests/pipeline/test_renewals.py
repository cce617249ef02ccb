"""What a run says of files that were renewed, and cannot be used together."""

from typing import Any

import structlog

from databus.core import ConfigError
from databus.pipeline.running._spark_start import Renewals
from databus.testing import FakeClock


def test_files_that_never_go_together_are_told_once_a_minute_with_their_names() -> None:
    clock = FakeClock()

    def send() -> bool:
        raise ConfigError("certificate_file /etc/shop.pem, key_file /etc/shop.key: not a certificate and its key")

    with structlog.testing.capture_logs() as told:
        renewals = Renewals(structlog.get_logger(), clock)
        renewals.send = send
        for _ in range(121):
            renewals.look()
            clock.advance_ms(500)
        found: list[Any] = [each["message"] for each in told if each["log_level"] == "warning"]
        assert len(found) == 2
        assert "/etc/shop.key" in found[0]
        renewals.send = lambda: True
        renewals.look()
    assert told[-1]["event"] == "executors were sent the renewed files by which the relay is asked"
    assert renewals.last_s is not None
