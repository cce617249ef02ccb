"""Conditions: text that an operator gives, to stand between brackets in our own statements."""

from collections.abc import Sequence

import pymysql

from databus.core import InputError, name_parts
from databus.sources.mysql.server import error_of
from databus.sources.mysql.tables import Server, UnreadableStatement, tokens_of


def check_condition(where: str, server: Server) -> None:
    """Raise `InputError` unless it stays inside the brackets that it is put into.

    The server itself says whether it is a condition; what it cannot say is that the text closes our bracket, or ends
    our statement, and goes on with one of its own.

    >>> check_condition("id IN (1, 2) AND name <> ')'", Server("mysql", (8, 0, 31)))
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


def try_condition(connection: pymysql.Connection, sources: Sequence[str], where: str) -> None:
    """Raise `InputError` if the server does not understand it for these tables. Checked by `check_condition` before."""
    try:
        for source in sources:
            table = ".".join("`" + name.replace("`", "``") + "`" for name in name_parts(source))
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN SELECT 1 FROM {table} WHERE ({where}\n)")  # noqa: S608 - the operator's own
    except pymysql.MySQLError as error:
        raise InputError(f"where: the server does not take {where!r}: {error_of(error)[1]}") from error
