"""The operations that were requested since the dashboard's start, and their results. Start with `Operations.do`.

A request that is repeated with one Idempotency-Key is done once; one that was refused before anything was done may be
repeated with its key until it is. The audit log has each operation when it begins and
when it has ended; an operation that cannot be written there is not done.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from databus.core import DatabusError, MalformedRequest, StateDiffers
from databus.dashboard._parts import why
from databus.dashboard._rights import Principal
from databus.operate import logger_of
from databus.relay import Audit

_KEPT_MAX: Final = 1_000
"""Operations, and idempotency keys; the oldest are forgotten."""
_WAIT_S: Final = 3.0
"""How long a request waits for the end of its operation: most end at once, and then the answer has the error."""

_BEGUN: Final = "begun"
"""The result of an operation that has not ended, in the audit log."""

_logger = logger_of("databus.dashboard")


@dataclass
class Operation:
    """One change that a principal requested."""

    action: str
    """Kind and verb, such as `output pause`."""
    target: str
    """What it changes, such as `shop/outputs.copy`."""
    principal: Principal
    """Who requested it."""
    address: str
    """The network address of the request."""
    project: str | None
    """The project of the target: who sees that sees the operation."""
    asked: Mapping[str, Any]
    """The parameters of the request."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    at_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    ended_us: int = 0
    """0 while it runs."""
    error: DatabusError | None = None
    """Why it failed; None while it runs, and when it is done."""
    result: Any = None
    """What the part has answered."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        state = "running" if not self.ended_us else "failed" if self.error is not None else "done"
        return {
            "id": self.id,
            "at_us": self.at_us,
            "ended_us": self.ended_us,
            "state": state,
            "action": self.action,
            "target": self.target,
            "principal": self.principal.name,
            "address": self.address,
            "asked": dict(self.asked),
            "message": "" if self.error is None else str(self.error),
            "result": self.result,
        }


class Operations:
    """Used by the loop's thread."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._noting = ThreadPoolExecutor(1, "dashboard-audit")
        self._kept: dict[str, Operation] = {}
        self._by_key: dict[tuple[str, str], Operation] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    async def do(self, operation: Operation, begin: Callable[[], Awaitable[Any]], key: str | None = None) -> Operation:
        """Run an operation by `begin`; return it when it has ended, or still runs after `_WAIT_S`. key: a second call
        with the same one returns the operation of the first, unless that was refused and nothing was done.

        Raises what `begin` raised, if it did so in time; `MalformedRequest` for the key of a different operation;
        `DiskFull` if the operation was not done because the audit log could not be written.
        """
        known = None if key is None else self._by_key.get((operation.principal.name, key))
        if known is not None:
            if (known.action, known.target, known.asked) != (operation.action, operation.target, operation.asked):
                raise MalformedRequest(
                    f"Idempotency-Key: it was used for {known.action} of {known.target}; take another"
                )
            return known
        self._keep(operation, key)
        task = asyncio.ensure_future(self._run(operation, begin, key))
        self._tasks.add(task)  # asyncio itself keeps only a weak reference to a task
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task], timeout=_WAIT_S)
        if operation.error is not None:
            raise operation.error
        return operation

    async def refuse(self, operation: Operation, error: DatabusError) -> None:
        """Note an operation in the audit log that was refused before it began."""
        await self._in_turn(self._audit.note, operation, _result_of(error))

    def seen_by(self, principal: Principal) -> Iterator[Operation]:
        """The operations on what a principal sees, the newest first."""
        return (operation for operation in reversed(self._kept.values()) if principal.sees(operation.project))

    def close(self) -> None:
        """Begin no further writes to the audit log; do not wait for those that are under way."""
        self._noting.shutdown(wait=False)  # without cancelling: what was done must still be noted

    def _keep(self, operation: Operation, key: str | None) -> None:
        self._kept[operation.id] = operation
        if key is not None:
            self._by_key[operation.principal.name, key] = operation
        for kept in (self._kept, self._by_key):
            while len(kept) > _KEPT_MAX:
                del kept[next(iter(kept))]  # type: ignore[arg-type]  # each has keys of its own

    async def _run(self, operation: Operation, begin: Callable[[], Awaitable[Any]], key: str | None) -> None:
        is_begun = False
        try:
            # Written first: what cannot be noted is not done.
            await self._in_turn(self._audit.write, operation, _BEGUN)
            work = begin()
            is_begun = True
            operation.result = await work
        except DatabusError as error:
            operation.error = error
            if key is not None and (not is_begun or isinstance(error, StateDiffers)):
                # Nothing was done. Else the key would stand for this refusal long after the disk has room again.
                self._by_key.pop((operation.principal.name, key), None)
        except Exception as error:
            _logger.exception("an operation ended by a defect", action=operation.action, target=operation.target)
            operation.error = DatabusError(f"a defect: {why(error)}")
        operation.ended_us = time.time_ns() // 1000
        await self._in_turn(self._audit.note, operation, _result_of(operation.error))

    async def _in_turn(self, write: Callable[..., None], operation: Operation, result: str) -> None:
        who = {"principal": operation.principal.name, "address": operation.address}
        asked = {"target": operation.target, "project": operation.project, **operation.asked, "operation": operation.id}
        await asyncio.get_running_loop().run_in_executor(self._noting, write, operation.action, who, asked, result)


def _result_of(error: DatabusError | None) -> str:
    return "done" if error is None else f"{type(error).__name__}: {error}"


def last_of_each(entries: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The entries of the audit log, without the `begun` of operations that have ended."""

    def begun(entry: Mapping[str, Any]) -> Any:
        return entry.get("asked", {}).get("operation") if entry.get("result") == _BEGUN else None

    ended = {entry.get("asked", {}).get("operation") for entry in entries if not begun(entry)}
    return (entry for entry in entries if not begun(entry) or begun(entry) not in ended)
