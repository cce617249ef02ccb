"""Real servers for tests, benchmarks and demos: fetched once, started on free ports in a folder of their own.

    with MariaDb(folder) as server:
        server.query("CREATE TABLE test.t (id INT PRIMARY KEY)")

Databases have one face, `Server`; search engines another, `SearchServer`; `Kafka` has its own.
What a machine cannot have raises `ServerMissing` with the reason.
`python -m databus.testing.servers` fetches them all and says what is there.
"""

from databus.testing.servers._fetch import ServerMissing, cache_folder
from databus.testing.servers._kafka import Kafka
from databus.testing.servers._kinds import KINDS, SOAK_KINDS, open_server
from databus.testing.servers._mariadb import MariaDb
from databus.testing.servers._mysql import MySql
from databus.testing.servers._search import SEARCH_KINDS, SearchServer, open_search_server
from databus.testing.servers._server import Certificates, Server
from databus.testing.servers._server_process import ServerProcess

__all__ = [
    "KINDS",
    "SEARCH_KINDS",
    "SOAK_KINDS",
    "Certificates",
    "Kafka",
    "MariaDb",
    "MySql",
    "SearchServer",
    "Server",
    "ServerMissing",
    "ServerProcess",
    "cache_folder",
    "open_search_server",
    "open_server",
]
