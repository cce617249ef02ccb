"""Captures physical sources into logs of frames and serves them over HTTP. Start with `Relay`."""

from databus.relay._access_mistakes import mistakes_on_disk
from databus.relay._admission import HTTP_LOGGER, admit, error_response, hide_from_pages
from databus.relay._audit import Audit, operator
from databus.relay._capture_state import State
from databus.relay._command_pages import with_commands
from databus.relay._config import (
    CaptureConfig,
    RelayConfig,
    ServeConfig,
    address_of,
    checked_relay,
    is_loopback,
    load_relay,
    parse_relay,
    tokens_in,
)
from databus.relay._log_identity import check_identity, held_identity
from databus.relay._relay import Relay, relay_url, run_relay, told_url
from databus.relay._tokens import Tokens, keep_renewing

__all__ = [
    "HTTP_LOGGER",
    "Audit",
    "CaptureConfig",
    "Relay",
    "RelayConfig",
    "ServeConfig",
    "State",
    "Tokens",
    "address_of",
    "admit",
    "check_identity",
    "checked_relay",
    "error_response",
    "held_identity",
    "hide_from_pages",
    "is_loopback",
    "keep_renewing",
    "load_relay",
    "mistakes_on_disk",
    "operator",
    "parse_relay",
    "relay_url",
    "run_relay",
    "tokens_in",
    "told_url",
    "with_commands",
]
