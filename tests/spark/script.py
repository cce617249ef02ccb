"""Scripts for the mock source, built change by change."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from databus.formats import to_json_value
from databus.schema import TableSchema


def schema(table: TableSchema, **more: Any) -> dict[str, Any]:
    return {"schema": table.to_json(), **more}


def insert(table: TableSchema, **row: Any) -> dict[str, Any]:
    return {"table": table.source, "insert": {name: to_json_value(value) for name, value in row.items()}}


def control(table: TableSchema, kind: str, **more: Any) -> dict[str, Any]:
    return {"control": {"kind": kind, "source": table.source, **more}}


def transaction(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"changes": list(changes)}


def write(path: Path, transactions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Write the script; returns the source's configuration. Written longer and started again, it goes on."""
    path.write_text("".join(json.dumps(transaction) + "\n" for transaction in transactions))
    return {"type": "mock", "script": str(path)}
