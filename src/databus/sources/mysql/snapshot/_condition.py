"""Conditions: text of an operator that databus puts between brackets into its own statements."""

from collections.abc import Sequence
from contextlib import closing

import pymysql

from databus.core import InputError, name_parts
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.server import ServerFacts, connect_again, error_of
from databus.sources.mysql.tables import ServerKind, UnreadableStatement, tokens_of


def check_condition(where: str, server: ServerKind) -> None:
    """Raise `InputError` unless it stays inside the brackets that it is put into.

    The server itself says whether it is a condition; what it cannot say is that the text closes our bracket, or ends
    our statement, and goes on with one of its own.

    >>> check_condition("id IN (1, 2) AND name <> ')'", ServerKind("mysql", (8, 0, 31)))
    """
    depth = 0
    try:
        for token in tokens_of(where, server):
            sign = where[token.start : token.end]
            depth += (sign == "(") - (sign == ")")
            if depth < 0 or sign == ";":
                raise InputError(f"where: {where!r} is not one condition: it goes on behind its end, at {sign!r}")
    except UnreadableStatement as error:
        raise InputError(f"where: {where!r} is not one condition: {error}") from error
    if depth:
        raise InputError(f"where: {where!r} is not one condition: a bracket is not closed")


def try_condition(physical: str, config: MysqlConfig, facts: ServerFacts, sources: Sequence[str], where: str) -> None:
    """Raise `InputError` if the server does not understand it for these tables: once a snapshot has begun, an error
    stops capture.
    """
    check_condition(where, ServerKind(facts.flavor, facts.version))
    with closing(connect_again(config, facts)) as connection, connection.cursor() as cursor:
        try:
            for source in sources:
                table = ".".join("`" + name.replace("`", "``") + "`" for name in name_parts(source))
                cursor.execute(f"EXPLAIN SELECT 1 FROM {table} WHERE ({where}\n)")  # noqa: S608 - the operator's own
        except pymysql.MySQLError as error:
            raise InputError(f"{physical}: where: the server does not take {where!r}: {error_of(error)[1]}") from error
