"""Captures physical sources into logs of frames and serves them over HTTP. Start with `Relay`."""

from databus.relay._access_mistakes import mistakes_on_disk
from databus.relay._admission import HTTP_LOGGER, admit, error_response, hide_from_pages
from databus.relay._ask import Ask, json_answer
from databus.relay._audit import Audit, operator, read_audit
from databus.relay._capture import check_identity, held_identity
from databus.relay._capture_state import State
from databus.relay._catalog import Catalog, Selection, definition_json, source_json
from databus.relay._command import FLAG, Command, Parameter, Table, choice, whole
from databus.relay._command import Type as ParameterType
from databus.relay._command_table import command_named
from databus.relay._config import (
    AccessConfig,
    RelayConfig,
    ServeConfig,
    TlsConfig,
    address_of,
    checked_relay,
    is_loopback,
    load_relay,
    parse_relay,
    tokens_in,
)
from databus.relay._door import Door
from databus.relay._filters import check_filter
from databus.relay._grant import Grant
from databus.relay._help import help_text
from databus.relay._openapi import openapi
from databus.relay._params import StartName, start_of
from databus.relay._relay import Relay, relay_url, run_relay, told_url, url_at
from databus.relay._routing import Router
from databus.relay._server import RelayServer
from databus.relay._stats import Stats
from databus.relay._tokens import Tokens, keep_renewing

__all__ = [
    "FLAG",
    "HTTP_LOGGER",
    "AccessConfig",
    "Ask",
    "Audit",
    "Catalog",
    "Command",
    "Door",
    "Grant",
    "Parameter",
    "ParameterType",
    "Relay",
    "RelayConfig",
    "RelayServer",
    "Router",
    "Selection",
    "ServeConfig",
    "StartName",
    "State",
    "Stats",
    "Table",
    "TlsConfig",
    "Tokens",
    "address_of",
    "admit",
    "check_filter",
    "check_identity",
    "checked_relay",
    "choice",
    "command_named",
    "definition_json",
    "error_response",
    "held_identity",
    "help_text",
    "hide_from_pages",
    "is_loopback",
    "json_answer",
    "keep_renewing",
    "load_relay",
    "mistakes_on_disk",
    "openapi",
    "operator",
    "parse_relay",
    "read_audit",
    "relay_url",
    "run_relay",
    "source_json",
    "start_of",
    "tokens_in",
    "told_url",
    "url_at",
    "whole",
]
