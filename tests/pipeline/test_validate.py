"""Every mistake of a pipeline's file is found, all at once, each with its path and what to do; and without Spark."""

import subprocess
import sys

import pytest

from databus.core import ConfigError
from databus.pipeline import load_pipeline, validate
from databus.testing.shop import create_shop
from tests.pipeline.validated import GOOD, pipeline, problems_of, written


@pytest.fixture(autouse=True)
def shop(tmp_path) -> None:
    """The database that the files here name."""
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=0)


def test_a_good_file_has_no_problems(tmp_path):
    assert problems_of(tmp_path, GOOD) == []


@pytest.mark.parametrize("path", ["lake", "lake/{db}", "lake/all_{db}"])
def test_several_sources_may_share_a_target_that_merges(tmp_path, path):
    copy = f"outputs: {{copy: {{type: delta, from: shop, mode: mirror, path: '{path}', merge: true}}}}\n"
    assert problems_of(tmp_path, pipeline(copy)) == []


MISTAKES = {
    "a section that is none": ("nam: x\n", 'nam: there is no such section; did you mean "name"?'),
    "a name that no file could have": (
        "name: a/b\n",
        'name: "a/b" does not match ^[A-Za-z][A-Za-z0-9_-]{0,63}$',
    ),
    "an address without a port": (
        "relay: {listen: '127.0.0.1:x'}\n",
        "relay.listen: '127.0.0.1:x' is not host:port, such as 127.0.0.1:11115, with a port up to 65535",
    ),
    "an option that is none": (
        "outputs: {n: {type: mock, from: shop, chek: none}}\n",
        'outputs.n.chek: there is no such option; did you mean "check"?',
    ),
    "a type that is none": (
        "outputs: {n: {type: dleta, from: shop}}\n",
        'outputs.n.type: no type of output called "dleta"; did you mean "delta"?',
    ),
    "no type": (
        "filters: {f: {from: shop}}\n",
        "filters.f.type: missing; there are dedupe, mask, outbox, project, python, rename,",
    ),
    "no from": ("outputs: {n: {type: mock}}\n", "outputs.n.from: missing"),
    "a node that is no mapping": (
        "outputs: {n: delta}\n",
        "outputs.n: expected options, with at least `type: console`",
    ),
    "an unknown name": (
        "outputs: {n: {type: mock, from: [shop, shpo]}}\n",
        'outputs.n.from[1]: no input or filter called "shpo"; did you mean "shop"?',
    ),
    "a name twice": ("outputs: {n: {type: mock, from: [shop, shop]}}\n", 'outputs.n.from[1]: "shop" appears twice'),
    "an output as a source": (
        "outputs: {n: {type: mock, from: shop}, m: {type: mock, from: n}}\n",
        'outputs.m.from[0]: "n" is an output; nothing can read from it',
    ),
    "one name for two nodes": (
        "filters: {shop: {type: sql, from: shop, table: main.t, where: a > 1}}\n",
        "filters.shop: inputs.shop has the same name; a `from` could not tell them apart",
    ),
    "a name with a dot": (
        "filters: {a.b: {type: sql, from: shop, table: main.t, where: a > 1}}\n",
        "filters.a.b: a name begins with a letter and has letters, digits, _ and - only",
    ),
    "a route without its branch": (
        "filters: {r: {type: route, from: shop, tables: {a: [x], b: [y]}}}\noutputs: {n: {type: mock, from: r}}\n",
        'outputs.n.from[0]: "r" is a route; name one of its branches: "r.a", "r.b"',
    ),
    "a branch that is none": (
        "filters: {r: {type: route, from: shop, tables: {a: [x]}}}\noutputs: {n: {type: mock, from: [r.a, r.c]}}\n",
        'outputs.n.from[1]: "r" has no branch "c": "r.a"',
    ),
    "a branch of what has none": (
        "outputs: {n: {type: mock, from: shop.a}}\n",
        'outputs.n.from[0]: "shop" has no branches; write "shop"',
    ),
    "a cycle": (
        """\
        filters:
          a: {type: sql, from: b, where: x > 1}
          b: {type: sql, from: a, where: x > 1}
        """,
        "filters.a: a cycle: a -> b -> a",
    ),
    "no output": ("outputs: {}\n", "outputs: there is none; a pipeline needs at least one input and one output"),
    "a table of no source": (
        "inputs: {shop: {type: databus, tables: [main.a, shp/main.*]}}\n",
        'inputs.shop.tables[1]: no physical source called "shp"; did you mean "shop/main.*"?',
    ),
    "a filter that names no table": (
        "filters: {f: {type: sql, from: shop, where: a > 1}}\noutputs: {n: {type: mock, from: f}}\n",
        'filters.f.table: missing: "shop" carries tables, and sql works on one of them',
    ),
    "a table that does not come": (
        """\
        inputs: {shop: {type: databus, tables: [shop/main.a*]}}
        filters: {f: {type: sql, from: shop, table: main.orders, where: a > 1}}
        outputs: {n: {type: mock, from: f}}
        """,
        'filters.f.table: main.orders does not come out of "shop" on this way: what comes is shop/main.a*',
    ),
    "a misspelt table of an input": (
        """\
        inputs: {shop: {type: databus, tables: [main.oders, main.lines]}}
        filters: {f: {type: sql, from: shop, table: main.orders, where: a > 1}}
        outputs: {n: {type: mock, from: f}}
        """,
        'filters.f.table: main.orders does not come out of "shop" on this way: what comes is main.oders, main.lines',
    ),
    "a table of another branch": (
        """\
        filters:
          r: {type: route, from: shop, tables: {a: [main.orders]}, otherwise: b}
          f: {type: sql, from: r.b, table: main.orders, where: a > 1}
        outputs: {n: {type: mock, from: [f, r.a]}}
        """,
        'filters.f.table: main.orders does not come out of "shop" on this way: another branch has it',
    ),
    "a route by table of typed rows": (
        """\
        inputs: {gen: {type: mock}, shop: {type: databus}}
        filters: {r: {type: route, from: gen, tables: {a: [x]}}}
        outputs: {n: {type: mock, from: [r.a, shop]}}
        """,
        'filters.r.from[0]: "gen" gives typed rows of one table, and a route by table takes tables; put the route ',
    ),
    "tables into an output that takes rows": (
        "outputs: {n: {type: count, from: shop}}\n",
        (
            'outputs.n.from[0]: "shop" carries tables, and count takes typed rows of one table; put a filter between '
            "that "
            "names one, such as `type: sql` with `table` and `where`"
        ),
    ),
    "an aggregate": (
        (
            "filters: {f: {type: sql, from: shop, select: 'SELECT sum(a) FROM main.t'}}\n"
            "outputs: {n: {type: mock, from: f}}\n"
        ),
        "filters.f.select: an aggregate does not handle each row by itself; do that in a query over the copy",
    ),
    "both where and select": (
        "filters: {f: {type: sql, from: shop, where: a, select: SELECT 1}}\n",
        "filters.f: give either `where` or `select`",
    ),
    "one of the bus's columns": (
        (
            "filters: {f: {type: sql, from: shop, select: 'SELECT 1 AS _seq FROM main.t'}}\n"
            "outputs: {n: {type: mock, from: f}}\n"
        ),
        "filters.f.select: _seq is one of the bus's own columns, which are always kept",
    ),
    "a script that is not there": (
        (
            "filters: {f: {type: python, from: shop, table: main.t, function: 'no_such_module_x:g'}}\n"
            "outputs: {n: {type: mock, from: f}}\n"
        ),
        "filters.f.function: no module called no_such_module_x; for a file, write file.py:g",
    ),
    "a function that is none": (
        "filters: {f: {type: python, from: shop, table: main.t, function: 'mask'}}\n",
        'filters.f.function: "mask" is neither module:function nor file.py:function',
    ),
    "a table by two ways": (
        """\
        filters: {f: {type: sql, from: shop, table: main.orders, where: a > 1}}
        outputs: {copy: {type: delta, from: [shop, f], mode: mirror, path: 'lake/{physical}/{table}'}}
        """,
        (
            'outputs.copy.from[1]: main.orders reaches copy by "shop" and by "f"; a table has one way into an '
            "output: leave it out of one of them, or give it an output of its own"
        ),
    ),
    "two physical sources in one target": (
        "outputs: {copy: {type: delta, from: shop, mode: mirror, path: lake}}\n",
        (
            "outputs.copy.path: tables of hr and shop would meet in one target where they have one name; put "
            "`{physical}` into the path, or say `merge: true`"
        ),
    ),
    "two outputs in one target": (
        """\
        outputs:
          a: {type: delta, from: shop, mode: mirror, path: 'lake/{physical}/{table}'}
          b: {type: delta, from: shop, mode: history, path: 'lake/{physical}'}
        """,
        "outputs.b.path: several tables would become one target; put `{table}` into the path, or say `merge: true`",
    ),
    "a variable that is not set": (
        "name: ${NO_SUCH_VARIABLE_X}\n",
        "name: the environment has no variable NO_SUCH_VARIABLE_X; set it, or write ${NO_SUCH_VARIABLE_X:default}",
    ),
    "a limit out of range": (
        "run: {retry_ms_min: 0}\n",
        "run.retry_ms_min: 0 is below 1",
    ),
    "two outputs in one target, spelt otherwise": (
        """\
        outputs:
          a: {type: delta, from: shop, mode: mirror, path: 'lake/{physical}/{table}'}
          b: {type: files, from: shop, path: './x/../lake//{physical}/{table}/'}
        """,
        "outputs.b.path: outputs.a writes the same tables to ./x/../lake//{physical}/{table}/ already",
    ),
    "a key of a table that does not come": (
        """\
        inputs: {shop: {type: databus, tables: [shop/main.a]}}
        outputs: {m: {type: delta, from: shop, mode: mirror, path: lake, key: {main.b: [id]}}}
        """,
        "outputs.m.key.main.b: no table called main.b comes here; a key is given by `db.table`",
    ),
    "a store that is not known": (
        "outputs: {m: {type: delta, from: shop, mode: mirror, path: 'ftp://host/lake/{physical}'}}\n",
        "outputs.m.path: ftp: is no store that databus knows; there are s3, s3a, gs, abfss, and paths",
    ),
    "a bucket for each table": (
        "outputs: {m: {type: delta, from: shop, mode: mirror, path: 's3://lake-{table}/x'}}\n",
        "outputs.m.path: a place in a store is written s3://BUCKET/FOLDER",
    ),
    "a password in a URI": (
        "outputs: {m: {type: delta, from: shop, mode: mirror, path: 's3://key:secret@lake/x'}}\n",
        "outputs.m.path: a place in a store is written s3://BUCKET/FOLDER",
    ),
    "an option that no store has": (
        """\
        storage: {s3: {regoin: eu-central-1}}
        outputs: {m: {type: delta, from: shop, mode: mirror, path: 's3://lake/x'}}
        """,
        "outputs.m.path: s3://lake: has no option 'regoin'",
    ),
    "options of a store that is not known": (
        "storage: {ftp: {host: x}}\n",
        "storage.ftp",
    ),
    "one store spelt in two ways": (
        """\
        outputs:
          a: {type: delta, from: shop, mode: mirror, path: 's3://lake/x/{physical}'}
          b: {type: files, from: shop, path: 's3a://lake/x//{physical}/{table}/'}
        """,
        "outputs.b.path: outputs.a writes the same tables to s3a://lake/x//{physical}/{table}/ already",
    ),
    "a file's URI with a host": (
        "outputs: {m: {type: delta, from: shop, mode: mirror, path: 'file://host/x/{physical}'}}\n",
        "outputs.m.path: after `file:` comes a path from the root on",
    ),
    "a master that is none": (
        "spark: {master: nonsense}\n",
        "spark.master: 'nonsense' is not a master of Spark: local[*], local[N], spark://HOST:PORT, yarn, ",
    ),
    "two beginnings": (
        "inputs: {shop: {type: databus, starting_version: 5, starting_timestamp: '2026-01-01'}}\n",
        "inputs.shop: starting_version and starting_timestamp both say where to begin; remove one",
    ),
    "a time that is none": (
        "inputs: {shop: {type: databus, starting_timestamp: yesterday}}\n",
        "inputs.shop.starting_timestamp: 'yesterday' is neither microseconds since 1970 nor a time",
    ),
    "a relay's option that is none": ("relay: {log: {segment_byte: 1}}\n", "relay.log.segment_byte: "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_path_and_the_way_out(tmp_path, mistake):
    text, expected = MISTAKES[mistake]
    found = problems_of(tmp_path, pipeline(text))
    assert [line for line in found if line.startswith(expected)], "\n".join(found)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            "filters: {f: {type: sql, from: shop, table: main.t, where: a > 1}}\n",
            "filters.f: no output gets anything from it; name it in a `from`, or remove this filter",
        ),
        (
            "inputs: {shop: {type: databus}, idle: {type: mock}}\n",
            "inputs.idle: no output gets anything from it; name it in a `from`, or remove this input",
        ),
    ],
    ids=["filter", "input"],
)
def test_what_leads_nowhere_is_warned_of_and_keeps_nothing_from_running(tmp_path, sections, told):
    path = written(tmp_path, pipeline(sections))
    assert [(str(each), each.is_warning) for each in validate(path)] == [(told, True)]
    load_pipeline(path)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2, 3]", "yarn", "local-cluster[2,1,1024]"])
def test_masters_of_spark_are_known(tmp_path, master):
    found = problems_of(tmp_path, GOOD, master=master)
    assert not [each for each in found if each.startswith(("--master", "spark."))]


def test_a_target_is_the_same_through_a_link(tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    two = GOOD.replace("from: big, mode: mirror, path: lake/big", "from: shop, mode: history, path: link/mirror")
    assert "outputs.bigs.path: outputs.copy writes the same tables to link/mirror already" in problems_of(tmp_path, two)


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path):
    found = problems_of(
        tmp_path,
        """
        nam: shop
        sources: {shop: {type: mok}}
        inputs: {shop: {type: databus, tabels: [x]}}
        filters: {f: {type: sql, from: shopp, where: "a > ${NOPE_X}"}, g: {type: sql, from: [f], where: "x >"}}
        outputs: {copy: {type: delta, form: g, mode: mirror}, n: {type: mokc, from: g}}
        """,
    )
    paths = {line.partition(": ")[0] for line in found}
    assert {
        "nam",
        "sources.shop.type",
        "inputs.shop.tabels",
        "filters.f.from[0]",
        "filters.f.where",
        "filters.g.where",
        "outputs.copy.form",
        "outputs.copy.from",
        "outputs.copy.path",
        "outputs.n.type",
    } <= paths


def test_a_file_that_is_not_yaml_is_one_problem_with_its_line(tmp_path):
    (found,) = problems_of(tmp_path, "inputs: [\n")
    assert "1" in found or "2" in found


def test_errors_raised_name_the_file(tmp_path):
    path = written(tmp_path, "outputs: {n: {type: mock, from: x}}\n")
    with pytest.raises(ConfigError, match=f"{path}:1: outputs.n.from"):
        load_pipeline(path)


def test_a_problem_has_the_line_of_what_is_wrong_or_of_what_lacks_something(tmp_path):
    path = written(
        tmp_path,
        """\
        sources: {shop: {type: sqlite, path: shop.db}}
        inputs:
          shop: {type: databus, tables: [shop/main.*]}
        outputs:
          copy:
            type: delta
            from:
              - shop
              - ordrs
            mode: mirorr
            path: lake
          bare:
            type: files
            from: shop
        """,
    )
    assert {(each.path, each.line) for each in validate(path)} == {
        ("outputs.copy.mode", 10),
        ("outputs.bare.path", 12),
    }
    path.write_text(path.read_text().replace("mirorr", "mirror").replace("type: files", "type: console"))
    (found,) = validate(path)
    assert found.in_file("databus.yml").startswith("databus.yml:9: outputs.copy.from[1]: no input or filter called")


SETTINGS = {
    "one that Spark passes over": ("executor.memory: 1g", 'did you mean "spark.executor.memory"?', False),
    "one that comes from elsewhere": ("spark.master: local", "comes from spark.master of this file", False),
    "one that is misspelt": ("spark.executor.memmory: 1g", 'did you mean "spark.executor.memory"?', True),
    "a size that is none": ("spark.driver.memory: lots", '"lots" is not a size, such as 512m or 2g', False),
    "a number that is none": ("spark.executor.cores: two", '"two" is not a whole number', False),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_spark_that_does_nothing_is_found(tmp_path, name):
    setting, said, is_warning = SETTINGS[name]
    (found,) = validate(written(tmp_path, pipeline(f"spark: {{settings: {{{setting}}}}}\n")))
    assert said in found.message
    assert (found.path, found.is_warning) == (f"spark.settings.{setting.partition(':')[0]}", is_warning)


def test_settings_that_only_spark_can_judge_pass(tmp_path):
    settings = "{spark.executor.memory: 2g, spark.hadoop.fs.s3a.path.style.access: 'true', spark.ui.port: '4050'}"
    assert problems_of(tmp_path, pipeline(f"spark: {{settings: {settings}}}\n")) == []


def test_a_filter_with_errors_of_its_own_is_not_called_unknown(tmp_path):
    text = pipeline("filters: {f: {type: sql, from: shop}}\noutputs: {n: {type: mock, from: f}}\n")
    assert problems_of(tmp_path, text) == ["filters.f: give either `where` or `select`"]


def test_validate_and_graph_import_no_spark(tmp_path):
    path = written(tmp_path, GOOD)
    code = (
        "import sys; from databus.pipeline import validate, load_pipeline, render\n"
        f"assert validate({str(path)!r}) == []; render(load_pipeline({str(path)!r}), 'dot')\n"
        "print([m for m in ('pyspark', 'py4j') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"


def test_references_are_replaced_after_parsing(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKE", 'lake"\n  evil: [type, mock]')
    path = written(tmp_path, GOOD.replace("path: lake/mirror", "path: '${LAKE}/m'"))
    graph = load_pipeline(path)
    assert graph.config.nodes["outputs.copy"].config.path == 'lake"\n  evil: [type, mock]/m'


PLUGIN = """
from typing import ClassVar, Literal
from databus.pipeline import Delivery, Output, OutputConfig

class Config(OutputConfig):
    type: Literal["shout"] = "shout"
    loud: bool

class Shout(Output):
    config_model: ClassVar = Config
    delivery: ClassVar = Delivery.AT_LEAST_ONCE

    def write(self, batch):
        pass
"""


def test_a_users_own_output_is_found_by_its_entry_point_and_checked_like_ours(tmp_path, monkeypatch):
    (tmp_path / "shout_plugin.py").write_text(PLUGIN)
    info = tmp_path / "shout_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shout-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[databus.outputs]\nshout = shout_plugin:Shout\nlost = no_such_module_x:Y\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = pipeline(
        "outputs: {a: {type: shout, from: shop}, b: {type: shuot, from: shop}, c: {type: lost, from: shop}}\n"
    )
    found = problems_of(tmp_path, text)
    assert found[0] == "outputs.a.loud: missing"
    assert found[1] == 'outputs.b.type: no type of output called "shuot"; did you mean "shout"?'
    assert found[2].startswith('outputs.c.type: type "lost" comes from no_such_module_x:Y, which does not load')
    assert problems_of(tmp_path, pipeline("outputs: {a: {type: shout, from: shop, loud: true}}\n")) == []


def test_a_store_without_the_package_that_speaks_to_it_is_an_error_that_names_it(tmp_path, monkeypatch):
    for name in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    text = pipeline("outputs: {m: {type: delta, from: shop, mode: mirror, path: 's3://not-asked-before/x'}}\n")
    (found,) = problems_of(tmp_path, text, offline=True)
    assert found.startswith("outputs.m.path: s3://not-asked-before: the client of object stores is missing: ")
    assert "pip install '.[store]'" in found
