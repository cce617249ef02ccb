"""Names of sources: two tables never have one text, and a name stands for its own table wherever names are written."""

from hypothesis import example, given
from hypothesis import strategies as st

from databus.core import (
    is_pattern,
    name_fits,
    name_parts,
    short_name,
    source_name,
    split_names,
    split_physical,
)

parts = st.text(max_size=8) | st.text("ab.,/`*?[]! ", max_size=6)
pairs = st.tuples(parts, parts)
plain = st.from_regex(r"[\w$#@:;(){}=+-]{1,8}", fullmatch=True)


@given(pairs)
@example(("", ""))
@example(("a`.`b", "`"))
def test_any_pair_is_read_back_from_its_text(pair):
    assert name_parts(source_name(*pair)) == pair


@given(plain, plain, plain)
def test_names_without_characters_that_mean_something_are_as_the_database_has_them(database, table, more):
    assert source_name(database, table) == f"{database}.{table}"
    assert source_name(database, f"{table}.{more}") == f"{database}.{table}.{more}"
    assert short_name(f"{database}.{table}") == table


@given(pairs, pairs)
@example(("a", "b.c"), ("a.b", "c"))
@example(("a", "b*"), ("a", "bc"))
def test_a_name_is_a_pattern_of_its_own_table_alone(one, other):
    name = source_name(*one)
    assert not is_pattern(name)
    assert name_fits(name, name)
    assert name_fits(source_name(*other), name) == (one == other)


@given(pairs, pairs)
def test_a_short_name_is_a_pattern_of_tables_of_that_name(one, other):
    assert name_fits(source_name(*other), short_name(source_name(*one))) == (one[1] == other[1])


def test_a_pattern_without_a_dot_is_of_tables_or_of_whole_names():
    fitting = [name for name in ("shop.orders", "`shop.a`.t", "main.shop_1", "main.t") if name_fits(name, "shop*")]
    assert fitting == ["shop.orders", "`shop.a`.t", "main.shop_1"]
    assert not name_fits("shop.orders", "shop")


@given(st.lists(pairs, min_size=1, max_size=4))
def test_names_are_told_apart_in_a_list_with_commas(listed):
    names = [source_name(*each) for each in listed]
    assert split_names(", ".join(names)) == names
    assert split_names(",".join(f"shop/{each}" for each in names)) == [f"shop/{each}" for each in names]


@given(pairs)
def test_the_physical_source_is_what_stands_before_a_name(pair):
    name = source_name(*pair)
    assert split_physical(name) == ("", name)
    assert split_physical(f"shop/{name}") == ("shop", name)


@given(st.text(max_size=20))
def test_every_text_is_read_as_some_name(text):
    assert name_parts(source_name(*name_parts(text))) == name_parts(text)
