"""Each rule of answers is needed: without it some history of `test_laws` ends wrong."""

from dataclasses import replace

import pytest

from databus.bootstrap import _plan, _render, _told
from databus.core import ControlKind
from tests.bootstrap.test_laws import run


def without_the_awaited(monkeypatch):
    """States are served in which tables wait for a snapshot."""
    right = _plan.is_eligible
    monkeypatch.setattr(
        _plan, "is_eligible", lambda state, ask, kept: right(replace(state, incomplete=frozenset()), ask, kept)
    )


def without_open_snapshots(monkeypatch):
    """States are served inside a snapshot."""
    right = _plan.is_eligible

    def wrong(state, ask, kept):
        bare = replace(state, position=replace(state.position, snapshots={}), incomplete=frozenset())
        return right(bare, ask, kept)

    monkeypatch.setattr(_plan, "is_eligible", wrong)


def without_kinds(monkeypatch):
    """Every table is given since the position, whatever happened to it."""
    monkeypatch.setattr(_plan, "_kind", lambda *_: _plan.TableExtent.SINCE)


def without_horizons(monkeypatch):
    """A table is given since a position that its state does not reach back to."""
    right = _plan.kinds_of

    def wrong(state, *args, **options):
        tables = {name: replace(each, horizon=(0, 0)) for name, each in state.tables.items()}
        return right(replace(state, tables=tables), *args, **options)

    monkeypatch.setattr(_plan, "kinds_of", wrong)


def without_moved_rows(monkeypatch):
    """An update that changes the key removes nothing."""
    monkeypatch.setattr(_told.Told, "_moved", lambda self, table, rows, before: before < 0)


def without_drops(monkeypatch):
    """That a table was dropped is not told."""
    right = _told.Told.control
    monkeypatch.setattr(
        _told.Told,
        "control",
        lambda self, c: None if c.kind is ControlKind.DROP and not self.is_keyless else right(self, c),
    )


def without_told_once(monkeypatch):
    """Another answer tells again what one before it has told."""
    right = _plan._from_newest
    monkeypatch.setattr(
        _plan, "_from_newest", lambda *args, is_inside, told: right(*args, is_inside=is_inside, told=_plan.NOTHING)
    )


def without_schemas_of_whole_tables(monkeypatch):
    """Of a table that is given whole no change of its schema is told."""
    right = _told.Told.control

    def wrong(self, control):
        is_whole = self.answer.kinds.get(self.source) is _plan.TableExtent.ALL
        return None if is_whole and control.kind is ControlKind.SCHEMA else right(self, control)

    monkeypatch.setattr(_told.Told, "control", wrong)


def without_continuing_transactions(monkeypatch):
    """A group that ends inside a transaction does not say so."""
    right = _render._encoded
    monkeypatch.setattr(_render, "_encoded", lambda *args, **options: right(*args, **{**options, "following": None}))


def without_drops_of_narrowed_tables(monkeypatch):
    """A table that is captured with a WHERE is given whole over what is there."""
    right = _render._table_steps
    monkeypatch.setattr(_render, "_table_steps", lambda answer, *more: right(replace(answer, is_new=True), *more))


MUTANTS = {
    without_the_awaited: 0,
    without_open_snapshots: 0,
    without_kinds: 109,
    without_horizons: 14,
    without_moved_rows: 34,
    without_drops: 24,
    without_told_once: 0,
    without_schemas_of_whole_tables: 0,
    without_continuing_transactions: 0,
    without_drops_of_narrowed_tables: 0,
}
"""With a seed from which on a history that breaks comes soon."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_without_a_rule_a_history_ends_wrong(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in range(MUTANTS[mutant], MUTANTS[mutant] + 300):
        try:
            if run(seed) is not None:
                return
        except Exception:  # noqa: BLE001 - what is told makes no sense to a client
            return
    pytest.fail("nothing breaks without it")
