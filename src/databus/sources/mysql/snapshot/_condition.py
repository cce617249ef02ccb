"""Conditions: text that an operator gives, to stand between brackets in our own statements."""

from databus.core import WrongInput
from databus.sources.mysql.tables import Server, Unreadable, tokens_of


def check_condition(where: str, server: Server) -> None:
    """Raise `WrongInput` unless it stays inside the brackets that it is put into.

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
                raise WrongInput(f"where: {where!r} is not one condition: it goes on behind its end, at {sign!r}")
    except Unreadable as error:
        raise WrongInput(f"where: {where!r} is not one condition: {error}") from error
    if depth:
        raise WrongInput(f"where: {where!r} is not one condition: a bracket is not closed")
