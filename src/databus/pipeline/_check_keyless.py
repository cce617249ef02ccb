"""Tables without a key on their way to outputs that need one, of databases that were asked which these are."""

from collections.abc import Iterator, Sequence

from databus.core import DatabusError, split_physical
from databus.pipeline._config import Problem
from databus.pipeline._contract import Shape
from databus.pipeline._graph import Graph
from databus.pipeline._output_contract import Output
from databus.pipeline._registry import Kind
from databus.schema import Column, TableSchema
from databus.tasks import selects


def check_keyless(graph: Graph, keyless: Sequence[str]) -> Iterator[Problem]:
    """What would stop an output as soon as it meets one of these tables (`physical/db.table`).

    Only of whole tables that no filter has made into others: what filters make of them is not known by their names.
    """
    for node in graph.config.nodes.values():
        if node.kind is not Kind.OUTPUT:
            continue
        output = node.plugin(node.config, graph.config.context_of(node.name))
        for branch in graph.branches(node.path):
            is_whole = branch.shape is Shape.TABLES and not branch.over_tables
            if is_whole and isinstance(output, Output) and graph.inputs[branch.input].needs_relay:
                yield from _refused(output, [each for each in keyless if selects(branch.selection, each)])


def _refused(output: Output, keyless: Sequence[str]) -> Iterator[Problem]:
    for name in keyless:
        source = split_physical(name)[1]
        if output.key.of(source):  # which columns there are is not known here
            continue
        try:
            output.check_table(TableSchema(source, (Column("column", "string"),), ()))
        except DatabusError as error:
            where, _, message = str(error).partition(": ")
            yield Problem(where, message)
