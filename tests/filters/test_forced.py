"""What is forced on a reader: its conditions hold too, and what it hides is not there."""

import pytest

from databus.core import ControlKind, UnknownColumn
from databus.filters import FrameFilter, StreamFilter, TableRule
from databus.schema import Column, TableSchema
from databus.wire import Commit, Control, Group, encode_group
from tests.filters.histories import AT_US, SOURCE, Change, ChangeType, Registry, groups_of, images_of, rows_of

PEOPLE = TableSchema(
    SOURCE,
    (Column("id", "int64"), Column("name", "string"), Column("ssn", "string"), Column("region", "string")),
    ("id",),
)
FORCED = StreamFilter((TableRule("main.*", "region = 'CH'"), TableRule("*", hide=("ssn",))))


def encoded(registry: Registry, *groups: Group) -> bytes:
    return b"".join(bytes(each) for group in groups for each in encode_group(group, registry, AT_US).buffers)


@pytest.fixture
def registry() -> Registry:
    known = Registry()
    known.number_of(PEOPLE)
    known.now = PEOPLE
    return known


def people() -> Group:
    rows = [(1, "a", "111", "CH"), (2, "b", "222", "FR"), (3, "c", "333", "CH")]
    changes = [
        Change(ChangeType.INSERT, dict(zip(PEOPLE.names, row, strict=True)), (1, seq))
        for seq, row in enumerate(rows, 1)
    ]
    return Group(Commit(1, 3, "t1", {}, AT_US), (rows_of(PEOPLE, changes),))


def behind(registry: Registry, **asked: str) -> FrameFilter:
    return FrameFilter(StreamFilter.parse(**asked).behind(FORCED), "shop", registry)


def test_a_reader_gets_what_both_let_through_without_what_is_hidden(registry: Registry):
    frames = behind(registry, where="name <> 'a'")
    ((some, _),) = groups_of(frames.filtered(encoded(registry, people())).content)
    (found,) = images_of(some[0], frames.cut_of(PEOPLE).after)
    assert found.image == {"id": 3, "name": "c", "region": "CH"}


@pytest.mark.parametrize("asked", [{"where": "ssn = '111'"}, {"columns": "id,ssn"}, {"where": "ss = '1'"}])
def test_what_is_hidden_is_unknown_and_never_named(registry: Registry, asked: dict[str, str]):
    with pytest.raises(UnknownColumn) as raised:
        behind(registry, **asked).check([SOURCE], is_at_end=True)
    assert "'ssn'" not in str(raised.value).replace("no column 'ssn'", "")
    assert "id, name, region" in str(raised.value)


def test_a_control_shows_nothing_of_what_is_hidden(registry: Registry):
    after = TableSchema(SOURCE, (*PEOPLE.columns, Column("ssn_2", "string")), ("id",))
    registry.number_of(after)
    registry.now = after
    forced = StreamFilter((TableRule("*", hide=("ssn", "ssn_2")),))
    body = {
        "kind": ControlKind.SCHEMA,
        "source": SOURCE,
        "class": 2,
        "table": after.to_json(),
        "previous": f"{PEOPLE.fingerprint:016x}",
        "renamed": {},
        "fill": {"ssn_2": "x"},
        "ddl": "ALTER TABLE t ADD ssn_2",
    }
    control = Group(Commit(2, 1, "t2", {}, AT_US), (), Control(ControlKind.SCHEMA, after, 2, 1, body))
    frames = FrameFilter(StreamFilter().behind(forced), "shop", registry)
    ((some, _),) = groups_of(frames.filtered(encoded(registry, control)).content)
    assert b"ssn" not in bytes(some[0].body)
    assert some[0].control["fill"] == {}


def named(*names: str) -> TableSchema:
    return TableSchema(SOURCE, tuple(Column(name, "int64" if name == "id" else "string") for name in names), ("id",))


@pytest.mark.parametrize(
    ("before", "names", "seen"),
    [
        ([], ["id", "social"], ["id", "social"]),  # nothing is known of earlier names
        ([["id", "ssn"]], ["id", "social"], ["id"]),  # renamed, or dropped and another added
        ([["id", "SSN"]], ["id", "social"], ["id"]),
        ([["id", "ssn"]], ["id"], ["id"]),
        ([["id", "ssn"], ["id"]], ["id", "note"], ["id", "note"]),  # dropped; what comes later is another
        ([["id", "ssn"]], ["id", "ssn", "note"], ["id", "note"]),
        ([["id", "ssn"], ["id", "social"], ["id", "social", "note"]], ["id", "so", "note"], ["id", "note"]),
        ([["id", "ssn"], ["id", "social"]], ["id", "ssn", "note"], ["id"]),
    ],
)
def test_a_hidden_column_does_not_come_to_light_under_another_name(before, names, seen):
    known = Registry()
    for each in before:
        known.number_of(named(*each))
    known.now = named(*names)
    known.number_of(known.now)
    frames = FrameFilter(StreamFilter().behind(StreamFilter((TableRule("*", hide=("ssn",)),))), "shop", known)
    assert frames.cut_of(known.now).after.names == tuple(seen)
    asked = StreamFilter.parse(columns="id,social").behind(StreamFilter((TableRule("*", hide=("ssn",)),)))
    if "social" not in seen:
        with pytest.raises(UnknownColumn) as raised:
            FrameFilter(asked, "shop", known).check([SOURCE], is_at_end=True)
        assert not any(f"'{each}'" in str(raised.value) for each in ("ssn", "so"))


def test_a_table_whose_key_would_be_hidden_is_not_sent_and_its_reader_not_told_why(registry: Registry):
    frames = FrameFilter(StreamFilter().behind(StreamFilter((TableRule(hide=("id",)),))), "shop", registry)
    with pytest.raises(UnknownColumn, match="nothing of it is sent"):
        frames.cut_of(PEOPLE)
