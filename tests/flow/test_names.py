"""Names of tables where pipelines choose them, and what folders and topics are called after them."""

from contextlib import suppress
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from databus.core import InputError, UnsupportedFeature, source_name
from databus.disk import LocalLocation
from databus.filters import TableChoice, matches, names_for_relay, nearest, patterns_meet
from databus.flow import Folders, quoted, spelled
from databus.sinks.kafka import topic_name

parts = st.text("ab.,/`*?[]!", max_size=5)
pairs = st.tuples(parts, parts)
globs = st.text("ab.*?`", max_size=6)


@given(pairs, pairs)
@example(("a", "b.c"), ("a.b", "c"))
def test_a_full_name_chooses_its_own_table_alone(one, other):
    name, another = (f"shop/{source_name(*each)}" for each in (one, other))
    assert matches(name, [name])
    assert matches(another, [name]) == (one == other)
    assert patterns_meet(name, another) == (one == other)
    assert TableChoice((name,)).may_select(another) == (one == other)
    assert TableChoice(("*",), (name,)).may_select(another) == (one != other)
    assert names_for_relay([name, another], "shop") == list(dict.fromkeys([name, another]))


@given(pairs, globs, globs)
@example(("a", "b*"), "*.`b*`", "?.b*")
def test_patterns_that_one_table_matches_meet(pair, one, other):
    name = f"shop/{source_name(*pair)}"
    if matches(name, [one]):
        assert patterns_meet(one, name)
        assert TableChoice((one,)).may_select(name)
        if matches(name, [other]):
            assert patterns_meet(one, other)


def test_a_relay_is_asked_for_what_is_of_its_physical_source():
    wanted = ["a/main.x", "b/main.y", "main.`x,y`", "*/`a.b`.*", "b/*.o?"]
    assert names_for_relay(wanted, "a") == ["a/main.x", "a/main.`x,y`", "a/`a.b`.*"]
    assert names_for_relay(wanted, "b") == ["b/main.y", "b/main.`x,y`", "b/`a.b`.*", "b/*.o?"]


def test_what_was_likely_meant_is_spelled_as_it_has_to_be_written():
    assert nearest("shop/a.b.orders", ["shop/`a.b`.orders"]) == "shop/`a.b`.orders"
    assert nearest("`b,d`", ["shop/main.`b,c`"]) == "`b,c`"


@given(pairs, pairs)
@example(("a", "b.c"), ("a.b", "c"))
def test_no_two_tables_of_a_source_have_one_folder(one, other):
    for named in (quoted, spelled):
        for below in ("{db}.{table}", "{db}/{table}"):
            folders = Folders("path", LocalLocation(Path("/lake")), below, named)
            with suppress(UnsupportedFeature):  # a table without a name
                same = folders.of("shop", source_name(*one)) == folders.of("shop", source_name(*other))
                assert same == (one == other)


@given(st.tuples(*[st.text("ab._-", min_size=1, max_size=5)] * 2), st.tuples(*[st.text("ab._-", min_size=1)] * 2))
@example(("a", "b.c"), ("a.b", "c"))
@example(("a", ".b.c"), ("a.b", "c"))
def test_no_two_tables_of_a_source_have_one_topic(one, other):
    with suppress(InputError):  # no topic can be called so
        named = [topic_name("{physical}.{db}.{table}", "shop", source_name(*each)) for each in (one, other)]
        assert (named[0] == named[1]) == (one == other)
