# ruff: noqa: T201 - a program for the terminal
"""What sqlglot makes of the corpus, for docs/decisions/0003-ddl.md: `python -m tests.mysql.tables.measure_sqlglot`.

A statement counts as followed where the parser gives the parts that a history needs: for CREATE TABLE every column with
a type of its own, for ALTER TABLE an action, for RENAME, DROP and TRUNCATE TABLE the names. An opaque `Command`, an
error, or a column too few is a failure. It is not asked whether types, defaults or places are right.
"""

import logging
import time

import sqlglot
from sqlglot import exp

from databus.sources.mysql.tables._lexer import ServerKind, UnreadableStatement
from databus.sources.mysql.tables._statements import read_statement
from databus.sources.mysql.tables._syntax import AlterTable, CreateTable
from tests.mysql.tables.corpus import SCRIPTS

_SERVERS = (ServerKind("mariadb", (10, 11, 19)), ServerKind("mysql", (8, 0, 31)), ServerKind("mysql", (5, 7, 22)))


def _ours(sql: str) -> CreateTable | AlterTable | object | None:
    for server in _SERVERS:
        try:
            return read_statement(sql, server, 0, "d")
        except UnreadableStatement:
            continue
    return None


def _follows(sql: str, ours: object) -> bool:
    parsed = sqlglot.parse_one(sql, dialect="mysql")
    if isinstance(parsed, exp.Command):
        return False
    if isinstance(ours, CreateTable) and ours.columns:
        return len([c for c in parsed.find_all(exp.ColumnDef) if c.kind is not None]) == len(ours.columns)
    if isinstance(ours, AlterTable):
        return isinstance(parsed, exp.Alter) and len(parsed.args.get("actions") or ()) >= min(len(ours.actions), 1)
    return True


def main() -> None:
    logging.disable(logging.CRITICAL)
    total = failed = 0
    seconds = [0.0, 0.0]
    for name, script in SCRIPTS.items():
        bad = []
        for sql in script:
            began = time.process_time()
            ours = _ours(sql)
            between = time.process_time()
            if ours is None:
                continue
            total += 1
            try:
                ok = _follows(sql, ours)
            except sqlglot.errors.SqlglotError:
                ok = False
            seconds[0] += between - began
            seconds[1] += time.process_time() - between
            if not ok:
                bad.append(sql)
        failed += len(bad)
        print(f"{name}: {len(bad)} not followed")
        for sql in bad[:4]:
            print(f"    {sql[:110]}")
    print(f"{total} statements that matter, {failed} not followed by sqlglot {sqlglot.__version__}")
    print(f"CPU: ours {seconds[0] / total * 1e6:.0f} us a statement, sqlglot {seconds[1] / total * 1e6:.0f} us")


if __name__ == "__main__":
    main()
