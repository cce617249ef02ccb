"""What `databus validate` finds in filters over whole tables, before a pipeline starts."""

import textwrap

import pytest

from databus.pipeline import validate
from databus.testing.shop import create_shop
from tests.pipeline.validated import pipeline, problems_of

HEAD = """\
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus}}
"""
MISTAKES = {
    "a condition that is none": (
        "filters: {f: {type: where, from: shop, where: 'total_cents >'}}",
        "filters.f.where: character 14: expected a column or a value, the condition ends",
    ),
    "a function": (
        "filters: {f: {type: where, from: shop, where: 'lower(name) = 1'}}",
        "filters.f.where: character 1: lower(...): functions are not taken here",
    ),
    "a column that some tables lack": (
        "filters: {f: {type: where, from: shop, where: 'statuz = 1', tables: [main.orders]}}",
        'filters.f.where: shop/main.orders has no column "statuz"; did you mean "status"?',
    ),
    "a column that an earlier filter renamed": (
        (
            "filters: {r: {type: rename, from: shop, tables: orders, columns: {status: state}}, "
            "f: {type: project, from: r, tables: orders, exclude: status}}"
        ),
        'filters.f.exclude: shop/main.orders has no column "status"; did you mean "state"?',
    ),
    "a pattern that no table matches": (
        "filters: {f: {type: where, from: shop, where: 'id = 1', tables: [main.ordrs]}}",
        'filters.f.tables[0]: no table called main.ordrs; did you mean "main.orders"?',
    ),
    "a table's name in other letter case, whose rows would pass as they are": (
        "filters: {f: {type: mask, from: shop, redact: email, tables: [main.Customers]}}",
        'filters.f.tables[0]: no table called main.Customers; did you mean "main.customers"?',
    ),
    "nothing to mask": ("filters: {f: {type: mask, from: shop}}", "filters.f: give at least one of"),
    "a hash without salt": ("filters: {f: {type: mask, from: shop, hash: email}}", "filters.f: hash needs a `salt`"),
    "both lists of columns": (
        "filters: {f: {type: project, from: shop, columns: id, exclude: name}}",
        "filters.f: give either `columns` or `exclude`",
    ),
    "a column to hide that no table has, though it may be missing": (
        "filters: {f: {type: mask, from: shop, missing: skip, redact: [emial, name]}}",
        'filters.f.redact: none of its tables has a column "emial"; did you mean "email"?',
    ),
    "a cycle": (
        "filters: {f: {type: where, from: g, where: 'id = 1'}, g: {type: where, from: f, where: 'id = 1'}}",
        "filters.f: a cycle: ",
    ),
    "typed rows beside tables": (
        (
            "filters: {s: {type: sql, from: shop, table: main.orders, where: id > 1}, "
            "f: {type: where, from: [s, shop], where: 'id = 1'}}"
        ),
        'filters.f.from[1]: "shop" carries tables, and something else that comes to f is typed rows of one table; give',
    ),
    "before SQL, a column that the table lacks": (
        (
            "filters: {w: {type: where, from: shop, where: 'idd = 1', tables: [main.orders]}, "
            "f: {type: sql, from: w, table: main.orders, where: id > 1}}"
        ),
        'filters.w.where: shop/main.orders has no column "idd"; did you mean "id"?',
    ),
    "before SQL, a table that there is not": (
        (
            "filters: {w: {type: mask, from: shop, redact: email, tables: [main.custmers]}, "
            "f: {type: sql, from: w, table: main.customers, where: id > 1}}"
        ),
        'filters.w.tables[0]: no table called main.custmers; did you mean "main.customers"?',
    ),
    "SQL over a column that was left out before it": (
        (
            "filters: {w: {type: project, from: shop, exclude: status, tables: [main.orders]}, "
            "f: {type: sql, from: w, table: main.orders, where: status = 'open'}}"
        ),
        'filters.f.where: main.orders has no column "status"; there are',
    ),
    "a sample by a column that a table lacks": (
        "filters: {f: {type: sample, from: shop, fraction: 0.1, by: custmer_id, tables: [main.orders]}}",
        'filters.f.by: shop/main.orders has no column "custmer_id"; did you mean "customer_id"?',
    ),
    "a fraction of more than all": (
        "filters: {f: {type: sample, from: shop, fraction: 10}}",
        "filters.f.fraction: 10 is above 1",
    ),
    "columns that count and columns that do not": (
        "filters: {f: {type: dedupe, from: shop, columns: id, ignore: name}}",
        "filters.f: give `columns` or `ignore`, not both",
    ),
    "a column that does not count and is not there": (
        "filters: {f: {type: dedupe, from: shop, ignore: [updated_at], tables: [main.orders]}}",
        'filters.f.ignore: shop/main.orders has no column "updated_at"',
    ),
    "deletes of which nothing is said": (
        "filters: {f: {type: tombstones, from: shop}}",
        "filters.f.deletes: missing",
    ),
    "a mark where nothing is marked": (
        "filters: {f: {type: tombstones, from: shop, deletes: drop, column: gone}}",
        "filters.f: `column` and `time_column` go with `deletes: mark`",
    ),
    "a mark by the name of a column": (
        "filters: {f: {type: tombstones, from: shop, deletes: mark, column: status, tables: [main.orders]}}",
        "filters.f: shop/main.orders: it has a column status already",
    ),
    "rows chosen by the mark": (
        (
            "filters: {t: {type: tombstones, from: shop, deletes: mark, column: gone}, "
            "f: {type: where, from: t, where: gone = FALSE}}"
        ),
        "filters.f: shop/main.customers: gone is made by `tombstones`",
    ),
    "an outbox of which no table is named": (
        "filters: {f: {type: outbox, from: shop}}",
        "filters.f.tables: missing",
    ),
    "an outbox whose topic has another name in braces": (
        "filters: {f: {type: outbox, from: shop, tables: [main.orders], topic: 'shop.{rout}'}}",
        "filters.f.topic: only {route} can be in braces",
    ),
    "an outbox without the columns of one": (
        "filters: {f: {type: outbox, from: shop, tables: [main.orders], route: status, key: customer_id}}",
        'filters.f.payload: shop/main.orders has no column "payload"',
    ),
    "an outbox whose route is a number": (
        (
            "filters: {f: {type: outbox, from: shop, tables: [main.orders], route: total_cents, key: customer_id, "
            "payload: status}}"
        ),
        "filters.f: shop/main.orders: route: column total_cents is int64; a topic is named by text",
    ),
    "JSON in a column that is not there": (
        "filters: {f: {type: unnest, from: shop, tables: [main.orders], column: lines, columns: {sku: string}}}",
        'filters.f.column: shop/main.orders has no column "lines"',
    ),
    "JSON in a column of numbers": (
        "filters: {f: {type: unnest, from: shop, tables: [main.orders], column: id, columns: {sku: string}}}",
        "filters.f: shop/main.orders: column: id is int64; JSON is text",
    ),
    "a member of a type that there is not": (
        "filters: {f: {type: unnest, from: shop, tables: [main.orders], column: status, columns: {sku: text}}}",
        "filters.f.columns.sku: 'text' is not a column type; there are bool",
    ),
    "whole updates behind SQL": (
        ("filters: {s: {type: sql, from: shop, table: main.orders, where: id > 1}, f: {type: dedupe, from: s}}"),
        "filters.f.from: dedupe works between inputs and outputs that carry tables, and on the way to o another",
    ),
    "whole updates before SQL": (
        (
            "filters: {d: {type: tombstones, from: shop, deletes: drop}, "
            "f: {type: sql, from: d, table: main.orders, where: id > 1}}"
        ),
        "filters.d.from: tombstones works between inputs and outputs that carry tables",
    ),
    "one table by two ways": (
        (
            "filters: {f: {type: where, from: shop, where: 'id = 1', tables: orders}}\n"
            "outputs: {o: {type: count, from: [shop, f]}}"
        ),
        'outputs.o.from[1]: tables reach o by "shop" and by "f", through other filters',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_path_and_the_way_out(tmp_path, mistake):
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=0)
    text, expected = MISTAKES[mistake]
    outputs = "" if "outputs:" in text else "\noutputs: {o: {type: files, from: f, path: out}}\n"
    path = tmp_path / "databus.yml"
    path.write_text(HEAD + textwrap.dedent(text) + outputs)
    found = [str(each) for each in validate(path)]
    assert [line for line in found if line.startswith(expected)], "\n".join(found)


def test_one_line_for_all_tables_and_routes_that_divide_them_are_right(tmp_path):
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=0)
    path = tmp_path / "databus.yml"
    path.write_text(
        HEAD
        + textwrap.dedent("""\
        filters:
          split: {type: route, from: shop, tables: {people: [main.customers]}, otherwise: rest}
          safe: {type: mask, from: split.people, redact: [email]}
          cheap: {type: where, from: split.rest, where: price_cents < 100 OR total_cents < 100, missing: skip}
        outputs: {copy: {type: delta, from: [safe, cheap], mode: mirror, path: lake}}
        """)
    )
    assert validate(path) == []


def test_a_condition_on_a_column_that_no_table_has_is_warned_of_where_it_may_be_missing(tmp_path):
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=0)
    path = tmp_path / "databus.yml"
    filters = "filters: {f: {type: where, from: shop, missing: skip, where: deletd_at IS NULL}}\n"
    path.write_text(HEAD + filters + "outputs: {o: {type: files, from: f, path: out}}\n")
    (found,) = validate(path)
    assert found.is_warning
    assert str(found).startswith('filters.f.where: none of its tables has a column "deletd_at"')


@pytest.mark.parametrize(
    ("filter_", "told"),
    [
        (
            "{type: sql, from: shop, table: main.orders, where: abss(id) > 1}",
            "filters.f.where: Spark has no function `a",
        ),
        (
            "{type: sql, from: shop, select: 'SELECT id, uper(status) AS s FROM main.orders'}",
            "filters.f.select: Spark has",
        ),
        ("{type: route, from: shop, table: main.orders, where: {big: abss(id) > 1}}", "filters.f.where.big: Spark has"),
    ],
)
def test_a_function_that_spark_hardly_has_is_a_warning(tmp_path, filter_, told):
    """Not an error: Spark has more than databus knows, and its own refusal names it."""
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=0)
    comes = "f.big" if "route" in filter_ else "f"
    output = f"outputs: {{copy: {{type: delta, from: {comes}, mode: history, path: lake}}}}"
    (tmp_path / "databus.yml").write_text(f"{HEAD}filters: {{f: {filter_}}}\n{output}\n")
    (found,) = validate(tmp_path / "databus.yml")
    assert found.is_warning
    assert str(found).startswith(told)
    assert "did you mean" in found.message


COUNTING = """
outputs:
  topics:
    type: kafka
    from: FROM
    format: debezium
    debezium: {transaction_topic: "{physical}.transaction"}
    kafka: {bootstrap.servers: "k:9092"}
"""


@pytest.mark.parametrize(
    ("sections", "start", "told"),
    [
        (
            "filters: {sold: {type: sql, from: shop, table: shop/main.orders, where: 'id > 1'}}",
            "sold",
            "typed rows of one",
        ),
        (
            "inputs: {one: {type: databus, tables: [shop/main.a]}, two: {type: databus, tables: ['*/main.b']}}",
            "[one, two]",
            '"one" and "two" may bring tables of one source',
        ),
        ("inputs: {one: {type: databus, tables: [shop/*]}, two: {type: databus, tables: [hr/*]}}", "[one, two]", None),
        ("filters: {some: {type: where, from: shop, where: 'id > 1', missing: skip}}", "some", None),
        ("", "shop", None),
    ],
)
def test_changes_of_transactions_are_counted_only_where_one_query_brings_all_of_them(tmp_path, sections, start, told):
    found = problems_of(tmp_path, pipeline(f"{sections}\n{COUNTING.replace('FROM', start)}"))
    assert [each.partition(":")[0] for each in found] == ([] if told is None else ["outputs.topics.from"])
    assert told is None or told in found[0]


@pytest.mark.parametrize("other", ["{physical}.transaction", "{physical}.others"])
def test_two_outputs_do_not_tell_of_the_same_transactions_in_one_topic(tmp_path, other):
    sections = COUNTING.replace("FROM", "shop")
    second = sections.replace("outputs:\n", "").replace("topics:", "more:").replace("{physical}.transaction", other)
    found = problems_of(tmp_path, pipeline(sections.rstrip() + second))
    wanted = ["outputs.more.debezium.transaction_topic"] if other == "{physical}.transaction" else []
    assert [each.partition(":")[0] for each in found] == wanted
