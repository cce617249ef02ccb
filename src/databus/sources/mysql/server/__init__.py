"""A server: connections to it, what it says of itself, whether it can be captured, and its log as a replica gets it.

Start with `connect`, then `Dump`; `_check` has what can be wrong with a server, `_resumable` with a position.
"""

from databus.sources.mysql.server._check import check, check_source
from databus.sources.mysql.server._connection import close_quietly, connect, socket_of
from databus.sources.mysql.server._dump import BlockQueue, Dump
from databus.sources.mysql.server._errors import error_of, server_error, telling
from databus.sources.mysql.server._hosts import (
    ConnectedServer,
    Hosts,
    ServerMismatch,
    connect_again,
    open_dump,
    replica_id,
    second_replica_id,
)
from databus.sources.mysql.server._log_end import EndWatch, bytes_behind, distance_in, watch_end
from databus.sources.mysql.server._replication_filters import Hidden, like
from databus.sources.mysql.server._resumable import (
    Fault,
    Trouble,
    hidden_reset,
    is_by_file,
    place_to_ask,
    placed,
    scheme_of,
)
from databus.sources.mysql.server._skip import NoFeed, pass_over
from databus.sources.mysql.server._status import (
    Flavor,
    ServerFacts,
    account_of,
    ask,
    gtids_at,
    refuse,
    server_facts,
    version_of,
)

__all__ = [
    "BlockQueue",
    "ConnectedServer",
    "Dump",
    "EndWatch",
    "Fault",
    "Flavor",
    "Hidden",
    "Hosts",
    "NoFeed",
    "ServerFacts",
    "ServerMismatch",
    "Trouble",
    "account_of",
    "ask",
    "bytes_behind",
    "check",
    "check_source",
    "close_quietly",
    "connect",
    "connect_again",
    "distance_in",
    "error_of",
    "gtids_at",
    "hidden_reset",
    "is_by_file",
    "like",
    "open_dump",
    "pass_over",
    "place_to_ask",
    "placed",
    "refuse",
    "replica_id",
    "scheme_of",
    "second_replica_id",
    "server_error",
    "server_facts",
    "socket_of",
    "telling",
    "version_of",
    "watch_end",
]
