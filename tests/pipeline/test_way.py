"""The hash of what decides a table's rows: another where they would be others, and only there."""

from databus.pipeline import load_pipeline
from databus.pipeline.engine._plan import plan_queries, way_of
from databus.plugins._output import OutputContext

HEAD = """
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus}}
"""
PYTHON = "filters: {f: {type: python, from: shop, table: main.orders, function: 'f.py:f'}}"
MASK = "filters: {f: {type: mask, from: shop, tables: ['*'], hash: [email], salt: '%s'}}"


def ways(folder, filters, options="", start="f", name="out"):
    (folder / "databus.yml").write_text(
        f"{HEAD}\n{filters}\noutputs: {{{name}: {{type: delta, from: {start}, mode: mirror, path: lake{options}}}}}\n"
    )
    graph = load_pipeline(folder / "databus.yml")
    (plan,) = plan_queries(graph, ["shop"])
    node = graph.config.nodes[f"outputs.{name}"]
    return way_of(graph, plan.feeds[0], node.plugin(node.config, OutputContext("shop", name, folder)))


def sql(where, name="f", table="main.orders"):
    return f"filters: {{{name}: {{type: sql, from: shop, table: {table}, where: '{where}'}}}}"


def test_names_do_not_matter(tmp_path):
    one = ways(tmp_path, sql("a > 1"))("shop/main.orders")
    assert one == ways(tmp_path, sql("a > 1", "g"), start="g", name="other")("shop/main.orders")
    assert one == ways(tmp_path, sql("a > 1", table="orders"), ", merge_rows_max: 7, lane: x")("shop/main.orders")


def test_conditions_columns_and_keys_do(tmp_path):
    found = [
        ways(tmp_path, sql("a > 1"))("shop/main.orders"),
        ways(tmp_path, sql("a > 2"))("shop/main.orders"),
        ways(tmp_path, sql("a > 2"), ", key: [a]")("shop/main.orders"),
        ways(tmp_path, "", start="shop")("shop/main.orders"),
    ]
    assert len(set(found)) == len(found)


def test_a_key_matters_to_its_table(tmp_path):
    plain = ways(tmp_path, "", start="shop")
    keyed = ways(tmp_path, "", ", key: {main.orders: [id]}", start="shop")
    assert plain("shop/main.users") == keyed("shop/main.users")
    assert plain("shop/main.orders") != keyed("shop/main.orders")


def test_a_filter_over_tables_matters_to_those_that_it_is_about(tmp_path):
    text = "filters: {f: {type: project, from: shop, tables: [%s], exclude: [secret]}}"
    one, two = (ways(tmp_path, text % names) for names in ("main.orders", "main.orders, 'main.u*'"))
    plain = ways(tmp_path, "", start="shop")
    assert one("shop/main.orders") == two("shop/main.orders") != plain("shop/main.orders")
    assert one("shop/main.users") == plain("shop/main.users") != two("shop/main.users")


def test_the_text_of_a_function_matters(tmp_path):
    found = []
    for text in ("def f(b): return b\n", "def f(b): return b[:0]\n"):
        (tmp_path / "f.py").write_text(text)
        found.append(ways(tmp_path, PYTHON)("shop/main.orders"))
    assert found[0] != found[1]


def test_a_file_that_is_edited_while_its_text_runs_is_noticed_at_the_next_start(tmp_path):
    script = tmp_path / "f.py"
    script.write_text("def f(b): return b\n")
    before = ways(tmp_path, PYTHON)
    first = before("shop/main.orders")
    script.write_text("def f(b): return b[:0]\n")
    assert before("shop/main.orders") == before("crm/main.orders") == first
    assert ways(tmp_path, PYTHON)("shop/main.orders") != first


def test_another_salt_is_noticed_and_not_told(tmp_path):
    salts = ["0123456789abcdef", "0123456789abcdeg"]
    found = [ways(tmp_path, MASK % salt)("shop/main.orders") for salt in salts]
    assert found[0] != found[1]
    graph = load_pipeline(tmp_path / "databus.yml")
    assert salts[1] not in str(graph.filters["filters.f"].form(None))


def test_of_a_route_the_condition_matters_not_the_name_of_the_branch(tmp_path):
    text = "filters: {f: {type: route, from: shop, table: main.orders, where: {%s: a > 1}, otherwise: rest}}"
    found = ways(tmp_path, text % "big", start="f.big")("shop/main.orders")
    assert found == ways(tmp_path, text % "large", start="f.large")("shop/main.orders")
    assert found != ways(tmp_path, text % "big", start="f.rest")("shop/main.orders")
