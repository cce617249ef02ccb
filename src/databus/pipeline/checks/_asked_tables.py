"""What databases and relays say when they are asked which tables there are, before anything is started."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from databus.core import DatabusError, is_pattern
from databus.pipeline.graph import Graph, Problem
from databus.plugins import RunContext
from databus.schema import TableSchema
from databus.sources import Describable, SourceConfig, offered, offers


@dataclass
class AskedTables:
    """tables: by physical source and full name; none of a source that did not answer. problems: why not, as warnings:
    a file may be looked at where its databases cannot be reached.
    """

    tables: dict[str, Mapping[str, TableSchema]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, asks: bool | Collection[str]) -> Self:
        """Ask the servers that can be asked, all or those of these names, and a relay that runs elsewhere."""
        found = cls()
        for name, source in graph.config.sources.items():
            if (asks is True or name in (asks or ())) and offers(source, Describable):
                found._ask_server(name, source)
        found._ask_relay(graph)
        return found

    def lacks_a_name(self, name: str, source: SourceConfig) -> bool:
        """Whether a source names a table that there is not; `check-source` says so."""
        there = [each.source for each in self.tables.get(name, {}).values()]
        return name in self.tables and any(not is_pattern(each) for each in source.unmatched(there))

    def _ask_server(self, name: str, source: SourceConfig) -> None:
        try:
            found = offered(Describable, source, name).definitions(name, source)
        except DatabusError as error:
            self._unanswered(f"sources.{name}", error)
        else:
            self.tables[name] = {f"{name}/{each.source}": each for each in found}

    def _ask_relay(self, graph: Graph) -> None:
        config = graph.config
        path = next((path for path, each in graph.inputs.items() if each.needs_relay), None)
        if config.relay.url is None or path is None:
            return
        context = RunContext(config.name, path.partition(".")[2], config.folder, config.relay.url, config.access)
        try:
            for physical in {name.partition("/")[0] for name in graph.inputs[path].tables_of(context)}:
                self.tables[physical] = graph.inputs[path].tables_now(context, physical)
        except DatabusError as error:
            self.tables.clear()
            self._unanswered("relay.url", error)

    def _unanswered(self, where: str, error: DatabusError) -> None:
        message = f"does not say which tables there are, so that names of tables and columns were not checked: {error}"
        self.problems.append(Problem(where, message, is_warning=True))
