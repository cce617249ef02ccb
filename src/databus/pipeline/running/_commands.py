"""What can be asked of a running pipeline, verb by verb. Start with `Commands.answer`."""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol

from databus.core import InputError
from databus.pipeline.graph import Kind, PipelineConfig
from databus.pipeline.telling import Rest, Resting

VERBS: Final = ("pause", "resume", "drain", "stop", "reload", "status")
_OUTPUTS_MAX: Final = 1_000


class Run(Protocol):
    """What commands do to a run; each method is called by any thread and does not block."""

    @property
    def config(self) -> PipelineConfig:
        """Of its file, as it was read last."""

    def look(self) -> None:
        """Have it see to what is wanted of its outputs."""

    def retry(self, outputs: Collection[str]) -> None:
        """Have what has failed tried again."""

    def end_when_drained(self) -> None:
        """Have it end when no output has anything to do."""

    def ask_to_stop(self, why: str) -> None:
        """Have it end."""


class Commands:
    """Called by several threads. status: what is published, without what takes seconds. reload: takes the file again,
    and is told who asked.
    """

    def __init__(
        self,
        run: Run,
        resting: Resting,
        status: Callable[[], Mapping[str, Any]],
        reload: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._run = run
        self._resting = resting
        self._status = status
        self._reload = reload

    def answer(self, verb: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do it, and answer which outputs it is about. Raises `InputError` for what cannot be asked."""
        if verb not in VERBS:
            raise InputError(f"this pipeline knows no {verb!r}; it knows {', '.join(VERBS)}")
        if verb == "status":
            return self._status()
        if verb == "reload":
            return {**self._reload("databus reload"), "pid": self._status()["pid"]}
        given = request.get("outputs") or []
        if not isinstance(given, list) or len(given) > _OUTPUTS_MAX:
            raise InputError(f"`outputs`: expected at most {_OUTPUTS_MAX} names of outputs")
        named = [str(each) for each in given]
        outputs = self._together(named)
        answer = {"outputs": outputs, "pid": self._status()["pid"]}
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
