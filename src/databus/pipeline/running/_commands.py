"""What can be asked of a running pipeline, verb by verb. Start with `Commands.answer`."""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from databus.core import InputError, StateDiffers
from databus.pipeline.engine import can_throttle
from databus.pipeline.graph import Graph, Kind, PipelineConfig
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


class Run(Protocol):
    """What commands do to a run; each method is called by any thread and does not block."""

    @property
    def config(self) -> PipelineConfig:
        """Of its file, as it was read last."""

    @property
    def graph(self) -> Graph:
        """The same, joined."""

    def look(self) -> None:
        """Have it see to what is wanted of its outputs."""

    def retry(self, outputs: Collection[str]) -> None:
        """Have what has failed tried again."""

    def end_when_drained(self) -> None:
        """Have it end when no output has anything to do."""

    def ask_to_stop(self, why: str) -> None:
        """Have it end."""

    def rebuild(self, output: str, tables: Sequence[str]) -> list[str]:
        """Have tables of an output made anew, by patterns; returns their full names. Blocks until they are removed."""


class Commands:
    """Called by several threads. status: what is published; with True positions and backlog too, which takes seconds.
    reload: takes the file again, and is told who asked.
    """

    def __init__(
        self,
        run: Run,
        resting: Resting,
        status: Callable[[bool], Mapping[str, Any]],
        reload: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._run = run
        self._resting = resting
        self._status = status
        self._reload = reload

    def answer(self, verb: str, request: Mapping[str, Any], asker: str = "") -> Mapping[str, Any]:
        """Do it, and answer which outputs it is about. Raises `InputError` for what cannot be asked.

        asker: who has sent the request. A request may say for whom (`by`), why (`reason`), and in which states the
        outputs were seen (`if_seen`, by name); it is refused with `StateDiffers` where one is in another state now.
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
        from databus.relay import Audit  # late: most runs are never asked for anything

        return Audit(self._run.config.state)

    def _check_seen(self, seen: Any) -> None:
        if not isinstance(seen, dict):
            raise InputError("`if_seen`: expected the states of outputs, by name")
        status = self._status(False)
        for name, state in seen.items():
            now = status["state"] if not name else status["outputs"].get(name, {}).get("state", "not there")
            if now != state:
                what = f"output {name}" if name else "the pipeline"
                raise StateDiffers(f"{what} is {now} now, no longer {str(state)[:100]}; look again, then decide")

    def _check_file(self, seen: Any) -> None:
        if seen is not None and seen != written_hash(self._run.config.path):
            raise StateDiffers("the file is another one now than was seen; look again, then decide")

    def _done(self, verb: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if verb == "reload":
            return {**self._reload("databus reload"), "pid": self._status(False)["pid"]}
        if verb in OF_TABLES:
            return self._of_tables(verb, request)
        given = request.get("outputs") or []
        if not isinstance(given, list) or len(given) > _OUTPUTS_MAX:
            raise InputError(f"`outputs`: expected at most {_OUTPUTS_MAX} names of outputs")
        named = [str(each) for each in given]
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
        if not isinstance(tables, list) or not all(isinstance(each, str) for each in tables):
            raise InputError("`tables`: expected names or patterns of tables")
        if verb == "rebuild" and not tables:
            raise InputError("`tables`: expected names or patterns of those that are to be made anew")
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
        drained = [each for each in outputs if self._resting.of([each]) is not Rest.PAUSED]
        self._resting.drain(drained)
        if is_all:
            self._run.end_when_drained()
        return drained

    def _check_not_paused(self, outputs: Iterable[str], why: str) -> None:
        paused = [each for each in outputs if self._resting.of([each]) is Rest.PAUSED]
        if paused:
            raise InputError(f"{', '.join(paused)}: paused, {why}; `databus resume` it first")


def together(config: PipelineConfig, named: Collection[str]) -> list[str]:
    """The outputs of these names, all where there are none, with those that share their lanes.

    Raises `InputError` for a name that is none.
    """
    nodes = [each for each in config.nodes.values() if each.kind is Kind.OUTPUT]
    names = [each.name for each in nodes]
    for name in named:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(names)}"
            raise InputError(f'the pipeline that runs has no output called "{name}"; {hint}')
    lanes = {each.config.lane for each in nodes if each.name in named and each.config.lane is not None}
    return [each.name for each in nodes if not named or each.name in named or each.config.lane in lanes]


def _limit(request: Mapping[str, Any], name: str) -> int | None:
    most = request.get(name)
    if most is None:
        return None
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _LIMIT_MAX:
        raise InputError(f"`{name}`: {str(most)[:100]!r} is not a whole number in 1..{_LIMIT_MAX}")
    return most


def _who(request: Mapping[str, Any]) -> dict[str, str]:
    """For whom somebody asks, as they say; only the asker itself is known."""
    by = request.get("by")
    return {str(name): str(each) for name, each in by.items()} if isinstance(by, dict) else {}
