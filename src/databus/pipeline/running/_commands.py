"""The commands that a running pipeline takes, by verb. Start with `Commands.answer`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from databus.core import InputError, StateDiffers
from databus.formats import hint_for
from databus.pipeline.engine import can_throttle
from databus.pipeline.graph import Graph, PipelineConfig
from databus.pipeline.running._dead_letters import steer_letters
from databus.pipeline.running._shown import SHOWN, shown, written_hash
from databus.pipeline.telling import Rest, Resting, Throttle

if TYPE_CHECKING:
    from databus.relay import Audit

OF_TABLES: Final = ("replay", "drop", "rebuild")
CHANGING: Final = ("pause", "resume", "drain", "stop", "throttle", "reload", *OF_TABLES)
VERBS: Final = (*CHANGING, "status", "backlog", *SHOWN)
_OUTPUTS_MAX: Final = 1_000
_LIMIT_MAX: Final = 2**31 - 1


class SteeredRun(Protocol):
    """What commands need of a run; each method is called by any thread and does not block."""

    @property
    def config(self) -> PipelineConfig:
        """Of its file, as it was last read."""

    @property
    def graph(self) -> Graph:
        """The graph of the same file."""

    def look(self) -> None:
        """Have it start and stop outputs as `Resting` now says."""

    def retry(self, outputs: Collection[str]) -> None:
        """Try again what has failed."""

    def end_when_drained(self) -> None:
        """Have it end once no output has anything left to write."""

    def ask_to_stop(self, why: str) -> None:
        """Have it end."""

    def rebuild(self, output: str, tables: Sequence[str]) -> list[str]:
        """Have tables of an output rebuilt, by patterns; returns their full names. Blocks until they are removed."""


class Commands:
    """Called by several threads.

    status: the published status; with True also positions and backlog, which takes seconds. reload: reads the file
    again, given who asked.
    """

    def __init__(
        self,
        run: SteeredRun,
        resting: Resting,
        status: Callable[[bool], Mapping[str, Any]],
        reload: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._run = run
        self._resting = resting
        self._status = status
        self._reload = reload

    def answer(self, verb: str, request: Mapping[str, Any], asker: str = "") -> Mapping[str, Any]:
        """Carry out a command; the answer names the outputs concerned. Raises `InputError` for an invalid one.

        asker: who sent the request. A request may say for whom (`by`), why (`reason`), and which states the sender saw
        (`if_seen`, by output); it is refused with `StateDiffers` if one has changed since.
        """
        if verb not in VERBS:
            raise InputError(f"this pipeline knows no {verb!r}; it knows {', '.join(VERBS)}")
        if verb in ("status", "backlog"):
            return self._status(verb == "backlog")
        if verb in SHOWN:
            return shown(verb, self._run.graph, request)
        result = "done"
        try:
            self._check_seen(request.get("if_seen") or {})
            self._check_file(request.get("if_file"))
            return self._done(verb, request)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
            raise
        finally:
            asked = {name: request.get(name) for name in ("outputs", "tables", "rows", "bytes", "reason")}
            self._audit.note(verb, {"asker": asker, **_who(request)}, asked, result)

    @cached_property
    def _audit(self) -> "Audit":
        from databus.relay import Audit  # late: most runs never get a command

        return Audit(self._run.config.state)

    def _check_seen(self, seen: Any) -> None:
        if not isinstance(seen, dict):
            raise InputError("`if_seen`: expected the states of outputs, by name")
        status = self._status(False)
        for name, state in seen.items():
            now = status["state"] if not name else status["outputs"].get(name, {}).get("state", "not there")
            if now != state:
                what = f"output {name}" if name else "the pipeline"
                raise StateDiffers.between(what, state, now)

    def _check_file(self, seen: Any) -> None:
        path = self._run.config.path
        if seen is not None and seen != (now := written_hash(path)):
            raise StateDiffers.between(f"the hash of {path}", seen, now or "unknown", "if_file")

    def _done(self, verb: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if verb == "reload":
            return {**self._reload("databus reload"), "pid": self._status(False)["pid"]}
        if verb in OF_TABLES:
            return self._of_tables(verb, request)
        requested = request.get("outputs") or []
        if not isinstance(requested, list) or len(requested) > _OUTPUTS_MAX:
            raise InputError(f"`outputs`: expected at most {_OUTPUTS_MAX} names of outputs")
        named = [str(name) for name in requested]
        outputs = together(self._run.config, named)
        answer = {"outputs": outputs, "pid": self._status(False)["pid"]}
        match verb:
            case "pause":
                self._resting.pause(outputs)
            case "resume":
                self._resting.resume(outputs)
                self._run.retry(outputs)
            case "throttle":
                self._throttle(outputs, request)
            case "stop" if named:
                self._check_not_paused(outputs, "so it rests already")
                self._resting.stop(outputs)
            case "stop":
                self._run.ask_to_stop("databus stop")
            case "drain":
                answer["outputs"] = self._drain(outputs, is_all=not named)
        self._run.look()
        return answer

    def _of_tables(self, verb: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        outputs, tables = (request.get(name) or [] for name in ("outputs", "tables"))
        if not isinstance(outputs, list) or len(outputs) != 1:
            raise InputError("`outputs`: expected one name, of the output whose tables are meant")
        if not isinstance(tables, list) or not all(isinstance(pattern, str) for pattern in tables):
            raise InputError("`tables`: expected names or patterns of tables")
        if verb == "rebuild" and not tables:
            raise InputError("`tables`: expected names or patterns of the tables to rebuild")
        output = str(outputs[0])
        done: Mapping[str, Any]
        if verb == "rebuild":
            done = {"tables": self._run.rebuild(output, tables)}
        else:
            done = steer_letters(self._run.graph, verb, output, tables, _limit(request, "count"))
        return {"outputs": [output], "pid": self._status(False)["pid"], **done}

    def _throttle(self, outputs: Sequence[str], request: Mapping[str, Any]) -> None:
        throttle = Throttle(*(_limit(request, name) for name in ("rows", "bytes")))
        if not throttle.to_json():
            raise InputError("`rows` or `bytes`: expected how many a batch may have at most")
        graph = self._run.graph
        inputs = {way.input for output in outputs for way in graph.branches(f"outputs.{output}")}
        for path in sorted(inputs):
            if not can_throttle(graph.config.nodes[path], throttle):
                raise InputError(f"{path}: an input of this type has no such limit, so nothing is throttled")
        self._resting.throttle(outputs, throttle)

    def _drain(self, outputs: Iterable[str], *, is_all: bool) -> list[str]:
        if not is_all:
            self._check_not_paused(outputs, "so nothing would be written")
        drained = [name for name in outputs if self._resting.of([name]) is not Rest.PAUSED]
        self._resting.drain(drained)
        if is_all:
            self._run.end_when_drained()
        return drained

    def _check_not_paused(self, outputs: Iterable[str], why: str) -> None:
        paused = [name for name in outputs if self._resting.of([name]) is Rest.PAUSED]
        if paused:
            raise InputError(f"{', '.join(paused)}: paused, {why}; `databus resume` it first")


def together(config: PipelineConfig, named: Collection[str]) -> list[str]:
    """The outputs of these names, or all without names, with those that share their lanes.

    Raises `InputError` for an unknown name.
    """
    outputs = config.outputs
    for name in named:
        if name not in outputs:
            raise InputError(f'the pipeline that runs has no output called "{name}"; {hint_for(name, outputs)}')
    lanes = {outputs[name].config.lane for name in named} - {None}
    return [name for name, node in outputs.items() if not named or name in named or node.config.lane in lanes]


def _limit(request: Mapping[str, Any], name: str) -> int | None:
    limit = request.get(name)
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _LIMIT_MAX:
        raise InputError(f"`{name}`: {str(limit)[:100]!r} is not a whole number in 1..{_LIMIT_MAX}")
    return limit


def _who(request: Mapping[str, Any]) -> dict[str, str]:
    """For whom a request is made, as it claims; nothing checks that, unlike the asker."""
    by = request.get("by")
    return {str(name): str(value) for name, value in by.items()} if isinstance(by, dict) else {}
