"""Findings: each says one thing about a server. Also the user's grants, which several checks ask for."""

import re
from collections.abc import Iterable
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from databus.core import InputError
from databus.sources._capabilities import Finding, Severity
from databus.sources.mysql.server._status import ServerFacts, ask

__all__ = ["DENIED", "Finding", "Severity", "grants_of", "has_global", "refuse"]

DENIED: Final = frozenset({ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR})


def refuse(findings: Iterable[Finding]) -> None:
    """Raise `InputError` with every error among the findings, if there is one."""
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        raise InputError("; ".join(errors))


def grants_of(connection: "pymysql.Connection[Any]", facts: ServerFacts) -> list[str]:
    """SHOW GRANTS, active roles included."""
    using = ""
    if not facts.is_mariadb and facts.version >= (8, 0, 0):
        roles = str(next(iter(ask(connection, "SELECT CURRENT_ROLE()")[0].values())) or "NONE")
        using = "" if roles == "NONE" else f" FOR CURRENT_USER() USING {roles}"
    return [str(next(iter(row.values()))) for row in ask(connection, f"SHOW GRANTS{using}")]


def has_global(grants: Iterable[str], privilege: str) -> bool:
    """Whether one of the grants gives it on everything."""
    for grant in grants:
        match = re.match(r"GRANT (.+?) ON \*\.\* TO ", grant)
        if match and not {privilege, "ALL PRIVILEGES"}.isdisjoint(match[1].upper().split(", ")):
            return True
    return False
