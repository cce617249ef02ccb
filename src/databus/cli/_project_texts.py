"""The texts of projects that `databus init` writes, by the source that is captured."""

from collections.abc import Mapping
from textwrap import indent
from typing import Final

_SQLITE_PIPELINE: Final = """\
# A pipeline of databus: what is captured, and where it goes. Reference: docs/reference.md.
#   databus validate     finds every mistake in this file
#   databus test         runs the tests at its end
#   databus run          runs it until Ctrl-C
name: shop

relay:                          # the relay that `databus run` starts for the sources below
  folder: .databus/relay        # its logs: the stream, for as long as retention keeps it
  listen: 127.0.0.1:@PORT@

sources:
  shop:
    type: sqlite
    path: shop.db
    tables: [main.*]

inputs:
  shop:
    type: databus
    tables: [shop/main.*]

filters:
  large:                        # a WHERE over one table; the bus's own columns pass by themselves
    type: sql
    from: shop
    table: main.orders
    where: total_cents > 20000

outputs:
  copy:                         # tables that stay identical to the source
    type: delta
    from: shop
    mode: mirror
    path: lake/copy
  history:                      # every change that ever happened
    type: delta
    from: shop
    mode: history
    path: lake/history
  large_orders:
    type: files
    from: large
    format: json
    path: lake/large_orders

tests:
  a_small_order_is_no_large_one:
    table: main.orders
    to: large_orders
    rows:
      - {id: 1, total_cents: 20000}
      - {id: 2, total_cents: 20001}
    expect:
      - {id: 2, total_cents: 20001}
"""

_SQLITE_README: Final = """\
# A databus project

    databus run                                  # captures shop.db and keeps the tables in lake/ up to date
    python -m databus.testing.shop shop.db       # in another terminal: changes to the shop, without end
    databus tail --relay http://127.0.0.1:@PORT@  # every change, as it happens
    databus compare databus.yml copy             # is the copy identical?

`databus.yml` says what is captured and where it goes.
"""


_MYSQL_PIPELINE: Final = """\
# A pipeline of databus: what is captured, and where it goes. Reference: docs/reference.md.
#   databus check-source    asks the server what is missing, and names the statement that mends it
#   databus validate        finds every mistake in this file
#   databus run             runs it until Ctrl-C
# A text may hold ${NAME}, ${NAME:default} and ${file:PATH}.
name: shop

relay:                          # the relay that `databus run` starts for the sources below
  folder: .databus/relay        # its logs: the stream, for as long as retention keeps it
  listen: 127.0.0.1:@PORT@

sources:
  shop:
    type: mysql                 # MariaDB, too
    hosts: ["${MYSQL_HOST:127.0.0.1}:${MYSQL_PORT:3306}"]
    user: ${MYSQL_USER:databus}
    password: ${MYSQL_PASSWORD}
    tables: [shop.*]            # database.table; all tables of the database `shop`

inputs:
  shop:
    type: databus
    tables: [shop/*]            # all that is captured of the source above

outputs:
  copy:                         # tables that stay identical to the source
    type: delta
    from: shop
    mode: mirror
    path: lake/copy
  history:                      # every change that ever happened
    type: delta
    from: shop
    mode: history
    path: lake/history
"""

_MYSQL_PREPARE: Final = """\
-- What databus needs of a MySQL server, 8.0 or later: run this as an administrator, with a password of your own.
CREATE USER databus IDENTIFIED BY 'change-me';
GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO databus;
SET PERSIST binlog_row_metadata = 'FULL';  -- the log names its columns
SET PERSIST binlog_expire_logs_seconds = 604800;  -- and is kept for a week
-- GTIDs are recommended; `databus check-source` names the steps to them where they are off. Without them, also:
--   GRANT LOCK TABLES ON shop.* TO databus;
"""

_MARIADB_PREPARE: Final = """\
-- What databus needs of a MariaDB server, 10.5 or later: run this as an administrator, with a password of your own.
-- First, these lines under [mysqld] in its option file, and a restart; a MariaDB keeps no binary log by itself:
--   log-bin = binlog
--   server-id = 1
--   binlog-format = ROW
--   binlog-row-metadata = FULL
--   gtid-strict-mode = ON
--   binlog-expire-logs-seconds = 604800
CREATE USER databus IDENTIFIED BY 'change-me';
GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR ON *.* TO databus;
"""

_MYSQL_README: Final = """\
# A databus project

    mysql -u root -p < prepare.sql               # as an administrator of the server; read it first
    export MYSQL_PASSWORD=change-me              # what prepare.sql gave the user; MYSQL_HOST, MYSQL_PORT if not here
    databus check-source                         # is the server fit to be captured?
    databus run                                  # captures the tables and keeps those in lake/ up to date
    databus tail --relay http://127.0.0.1:@PORT@  # in another terminal: every change, as it happens
    databus compare databus.yml copy             # is the copy identical?

`databus.yml` says what is captured and where it goes.
"""

_KAFKA_PIPELINE: Final = """\
# A pipeline of databus: what is captured, and where it goes. Reference: docs/reference.md.
#   databus check-source    asks the cluster whether it answers, and what `topics` finds there
#   databus validate        finds every mistake in this file
#   databus run             runs it until Ctrl-C
# A text may hold ${NAME}, ${NAME:default} and ${file:PATH}. See docs/kafka-source.md.
name: events

relay:                          # the relay that `databus run` starts for the sources below
  folder: .databus/relay        # its logs: the stream, for as long as retention keeps it
  listen: 127.0.0.1:@PORT@

sources:
  events:
@KAFKA@
inputs:
  events:
    type: databus
    tables: [events/*]          # all that is captured of the source above

outputs:
  history:                      # every message, each a row; the key is (partition, offset)
    type: delta
    from: events
    mode: history
    path: lake/history
"""

_KAFKA_SOURCE: Final = """\
type: kafka
kafka:                        # options of the Kafka client, librdkafka, by its names
  bootstrap.servers: "${KAFKA_SERVERS:127.0.0.1:9092}"      # such as broker1:9092,broker2:9092
  # security.protocol: SASL_SSL
  # sasl.mechanism: SCRAM-SHA-512
  # sasl.username: databus
  # sasl.password: ${KAFKA_PASSWORD}
topics: [orders]              # yours; `*` stands for any run of characters: [orders, "shop.*"]
format: json                  # raw for any bytes; debezium, maxwell, ... for changes of rows, which need `schemas`
start: earliest               # or latest, or a time: where a new log begins
"""

_KAFKA_README: Final = """\
# A databus project

    pip install '.[kafka]'                       # in your clone of databus: the Kafka client
    export KAFKA_SERVERS=broker1:9092            # where your brokers are; and name your topics in databus.yml
    databus check-source                         # does the cluster answer, and are the topics there?
    databus run                                  # captures the topics and keeps their messages in lake/
    databus tail --relay http://127.0.0.1:@PORT@  # in another terminal: every message, as it comes

`databus.yml` says what is captured and where it goes. To try it without a cluster of yours:
`python -m databus.testing.servers --start kafka-4.3` starts a broker, and says where.
"""

_STREAM_PIPELINE: Final = """\
# A pipeline of databus: what is captured, and where it goes. Reference: docs/reference.md.
#   databus validate        finds every mistake in this file
#   databus test            runs the tests at its end
#   databus run             runs it until Ctrl-C
# See docs/stream-source.md.
name: lines

relay:                          # the relay that `databus run` starts for the sources below
  folder: .databus/relay        # its logs: the stream, for as long as retention keeps it
  listen: 127.0.0.1:@PORT@

sources:
  app:
@STREAM@
inputs:
  app:
    type: databus
    tables: [app/app.lines]

filters:
  errors:                       # a WHERE over one table; the bus's own columns pass by themselves
    type: sql
    from: app
    table: app.lines
    where: line LIKE '%ERROR%'

outputs:
  history:                      # every line, each a row; the key is (stream, offset)
    type: delta
    from: app
    mode: history
    path: lake/history
  errors:
    type: files
    from: errors
    format: json
    path: lake/errors

tests:
  a_line_without_the_word_is_no_error:
    table: app.lines
    to: errors
    columns: {stream: string, offset: int64, line: string}
    rows:
      - {stream: file-1, offset: 0, line: INFO started}
      - {stream: file-1, offset: 13, line: ERROR no room}
    expect:
      - {stream: file-1, offset: 13, line: ERROR no room}
"""

_STREAM_SOURCE: Final = """\
type: stream
path: app.log                 # your file; it is followed through rotation, and need not be there yet
# command: [journalctl, --follow, --output, json]   # in the place of `path`: what a process prints
table: app.lines              # what the table of lines is called
format: text                  # or json: each line is checked to be JSON
"""

_STREAM_README: Final = """\
# A databus project

    databus run                                  # follows app.log and keeps its lines in lake/
    echo "ERROR no room" >> app.log              # in another terminal: a line, unless a program of yours writes some
    databus tail --relay http://127.0.0.1:@PORT@  # every line, as it comes

`databus.yml` says which file or process is read, and where its lines go.
"""

_RELAY: Final = """\
# A relay of databus: it captures databases into logs and serves them over HTTP, to pipelines and programs anywhere.
#   databus check-source relay.yml    asks each server what is missing, and names the statement that mends it
#   databus relay relay.yml           runs it until it is stopped
# A text may hold ${NAME}, ${NAME:default} and ${file:PATH}. Every option: docs/reference.md, "A relay's file".
listen: 127.0.0.1:@PORT@        # beyond this machine, such as 0.0.0.0:@PORT@, it needs the token, and should have tls
# token_file: token             # what every request must carry; make one: (umask 77; openssl rand -hex 24 > token)
# tls: {certificate_file: relay.pem, key_file: relay.key}     # then clients ask by https://; see docs/tls.md
folder: relay                   # its logs: the streams, for as long as retention keeps them

log:
  retention_ms_max: 604800000   # a week
  retention_bytes_max: 10737418240

sources:
"""

_RELAY_SQLITE: Final = """\
shop:
  type: sqlite
  path: shop.db
  tables: [main.*]
"""

_RELAY_MYSQL: Final = """\
orders:
  type: mysql                   # MariaDB, too; prepare.sql makes the user
  hosts: ["${MYSQL_HOST:127.0.0.1}:${MYSQL_PORT:3306}"]
  user: ${MYSQL_USER:databus}
  password: ${MYSQL_PASSWORD}   # or password_file: FILE
  tables: [shop.*]              # database.table
  # exclude: [shop.tmp_*]
  # columns: {shop.users: {exclude: [ssn]}}
"""

_RELAY_KAFKA: Final = f"events:\n{indent(_KAFKA_SOURCE, '  ')}"
_RELAY_STREAM: Final = f"app:\n{indent(_STREAM_SOURCE, '  ')}"

_RELAY_README: Final = """\
# A databus relay

    databus relay relay.yml                                     # captures and serves until it is stopped
    databus sources --relay http://127.0.0.1:@PORT@             # what it captures
    databus tail --relay http://127.0.0.1:@PORT@                # every change, as it happens
    curl http://127.0.0.1:@PORT@/admin/ready                    # for probes; /metrics is for Prometheus

With a token, programs set the environment variable DATABUS_TOKEN or give `--token-file`. A pipeline reads the relay by

    relay: {url: "http://127.0.0.1:@PORT@", token_file: token}

in its file, instead of `sources`.
"""

_IGNORED: Final = ".databus/\nlake/\n"

_RELAY_SOURCES: Final[Mapping[str, str]] = {
    "sqlite": _RELAY_SQLITE,
    "mysql": _RELAY_MYSQL,
    "mariadb": _RELAY_MYSQL,
    "kafka": _RELAY_KAFKA,
    "stream": _RELAY_STREAM,
}
_PREPARE: Final[Mapping[str, str]] = {"mysql": _MYSQL_PREPARE, "mariadb": _MARIADB_PREPARE}
_PIPELINES: Final[Mapping[str, tuple[str, str]]] = {
    "sqlite": (_SQLITE_PIPELINE, _SQLITE_README),
    "mysql": (_MYSQL_PIPELINE, _MYSQL_README),
    "mariadb": (_MYSQL_PIPELINE, _MYSQL_README),
    "kafka": (_KAFKA_PIPELINE.replace("@KAFKA@", indent(_KAFKA_SOURCE, "    ")), _KAFKA_README),
    "stream": (_STREAM_PIPELINE.replace("@STREAM@", indent(_STREAM_SOURCE, "    ")), _STREAM_README),
}


def relay_files(source: str, port: int) -> dict[str, str]:
    """The texts of a relay's project, by name: the source that was asked for, and another kind as an example."""
    other = _RELAY_MYSQL if source == "sqlite" else _RELAY_SQLITE
    example = indent(other, "  # ", lambda line: bool(line.strip()))
    files = {
        "relay.yml": f"{_RELAY}{indent(_RELAY_SOURCES[source], '  ')}\n  # Another source beside it:\n{example}",
        "README.md": _RELAY_README,
        ".gitignore": "relay/\ntoken\n" + _also_ignored(source),
        **_prepare_of(source),
    }
    return _with_port(files, port)


def pipeline_files(source: str, port: int) -> dict[str, str]:
    """The texts of a pipeline's project, by name."""
    pipeline, readme = _PIPELINES[source]
    ignored = f"{_IGNORED}{_also_ignored(source)}"
    files = {"databus.yml": pipeline, **_prepare_of(source), "README.md": readme, ".gitignore": ignored}
    return _with_port(files, port)


def _also_ignored(source: str) -> str:
    return {"sqlite": "shop.db*\n", "stream": "app.log*\n"}.get(source, "")


def _prepare_of(source: str) -> dict[str, str]:
    return {"prepare.sql": _PREPARE[source]} if source in _PREPARE else {}


def _with_port(files: Mapping[str, str], port: int) -> dict[str, str]:
    return {name: text.replace("@PORT@", str(port)) for name, text in files.items()}
