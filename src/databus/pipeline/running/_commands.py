"""What can be asked of a running pipeline, verb by verb. Start with `Commands.answer`."""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from databus.core import InputError, StateDiffers
from databus.pipeline.graph import Graph, Kind, PipelineConfig
from databus.pipeline.running._dead_letters import steer_letters
from databus.pipeline.running._shown import SHOWN, shown
from databus.pipeline.telling import Rest, Resting

if TYPE_CHECKING:
    from databus.relay import Audit

OF_LETTERS: Final = ("replay", "drop")
CHANGING: Final = ("pause", "resume", "drain", "stop", "reload", *OF_LETTERS)
VERBS: Final = (*CHANGING, "status", "backlog", *SHOWN)
_OUTPUTS_MAX: Final = 1_000


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
            return self._done(verb, request)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
            raise
        finally:
            asked = {name: request.get(name) for name in ("outputs", "tables", "reason")}
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

    def _done(self, verb: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if verb == "reload":
            return {**self._reload("databus reload"), "pid": self._status(False)["pid"]}
        if verb in OF_LETTERS:
            return self._letters(verb, request)
        given = request.get("outputs") or []
        if not isinstance(given, list) or len(given) > _OUTPUTS_MAX:
            raise InputError(f"`outputs`: expected at most {_OUTPUTS_MAX} names of outputs")
        named = [str(each) for each in given]
        outputs = self._together(named)
        answer = {"outputs": outputs, "pid": self._status(False)["pid"]}
        match verb:
            case "pause":
                self._resting.pause(outputs)
            case "resume":
                self._resting.resume(outputs)
                self._run.retry(outputs)
            case "stop" if named:
                self._check_not_paused(outputs, "so it rests already")
                self._resting.stop(outputs)
            case "stop":
                self._run.ask_to_stop("databus stop")
            case "drain":
                answer["outputs"] = self._drain(outputs, is_all=not named)
        self._run.look()
        return answer

    def _letters(self, verb: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        outputs, tables = (request.get(name) or [] for name in ("outputs", "tables"))
        if not isinstance(outputs, list) or len(outputs) != 1:
            raise InputError("`outputs`: expected one name, of the output whose dead letters are meant")
        if not isinstance(tables, list) or not all(isinstance(each, str) for each in tables):
            raise InputError("`tables`: expected names or patterns of tables")
        done = steer_letters(self._run.graph, verb, str(outputs[0]), tables)
        return {"outputs": outputs, "pid": self._status(False)["pid"], **done}

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

    def _together(self, named: Collection[str]) -> list[str]:
        """The outputs of these names, all where there are none, with those that share their lanes.

        Raises `InputError` for a name that is none.
        """
        nodes = [each for each in self._run.config.nodes.values() if each.kind is Kind.OUTPUT]
        names = [each.name for each in nodes]
        for name in named:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(names)}"
                raise InputError(f'the pipeline that runs has no output called "{name}"; {hint}')
        lanes = {each.config.lane for each in nodes if each.name in named and each.config.lane is not None}
        return [each.name for each in nodes if not named or each.name in named or each.config.lane in lanes]


def _who(request: Mapping[str, Any]) -> dict[str, str]:
    """For whom somebody asks, as they say; only the asker itself is known."""
    by = request.get("by")
    return {str(name): str(each) for name, each in by.items()} if isinstance(by, dict) else {}
