"""No output, state or relay's folder may be in the folder of a table, which goes when that table is rebuilt."""

import pytest

from databus.core import ConfigError
from databus.pipeline import load_pipeline
from databus.pipeline.checks._validate import validate

HEAD = """\
name: p
sources:
  shop: {type: mock}
  hr: {type: mock}
inputs:
  all: {type: databus}
  some: {type: databus, tables: [shop/main.orders, shop/main.items]}
  shop_only: {type: databus, tables: [shop/*]}
outputs:
"""
COPY = "  copy: {type: delta, mode: mirror, from: %s, path: '%s'%s}\n"
MORE = "  more: {type: files, from: %s, path: '%s'}\n"


def written(folder, outputs, more=""):
    path = folder / "databus.yml"
    path.write_text(HEAD + outputs + more)
    return path


def nested_in(path):
    return [problem.path for problem in validate(path, offline=True) if "folder of a table" in problem.message]


NESTED = {
    "below every table": ("some", "lake/{table}", "some", "lake/{table}/raw"),
    "spelt otherwise": ("some", "./x/../lake", "some", "lake//{table}/raw"),
    "a table of that name may come": ("shop_only", "lake", "some", "lake/audit"),
    "this table comes": ("some", "lake", "some", "lake/orders"),
    "below a merged table": ("some", "lake/{physical}/{db}", "some", "lake/{physical}/{db}/raw/{table}"),
    "a source of that name": ("all", "lake/{physical}.{db}.{table}", "some", "lake/hr.main.x/{table}"),
    "a table that ends so": ("all", "lake/{table}", "some", "lake/{table}_raw/{db}"),
    "a template in a fixed folder": ("some", "lake/shop/{table}", "some", "lake/{physical}/{table}/raw"),
    "in a store": ("some", "s3://lake/x", "some", "s3a://lake/x/{table}/raw"),
}


@pytest.mark.parametrize("what", NESTED)
def test_an_output_in_the_folder_of_anothers_table_is_refused(tmp_path, what):
    outer, outer_path, inner, inner_path = NESTED[what]
    path = written(tmp_path, COPY % (outer, outer_path, "") + MORE % (inner, inner_path))
    assert nested_in(path) == ["outputs.more.path"]
    with pytest.raises(ConfigError, match=r"folder of a table of outputs\.copy"):
        load_pipeline(path)


BESIDE = {
    "beside": ("all", "lake/copy/{physical}/{table}", "some", "lake/raw"),
    "no such table": ("some", "lake", "some", "lake/audit"),
    "no such source": ("some", "lake/{physical}.{table}", "some", "lake/hr.orders/{table}"),
    "names that begin alike": ("some", "lake/{table}", "some", "lake/{table}_raw/{db}"),
    "at the same depth": ("all", "lake/{physical}/{table}", "some", "lake/raw/{table}"),
    "another bucket": ("some", "s3://lake/x", "some", "s3://lake2/x/{table}/raw"),
}


@pytest.mark.parametrize("what", BESIDE)
def test_an_output_beside_the_folders_of_anothers_tables_is_none_in_them(tmp_path, what):
    outer, outer_path, inner, inner_path = BESIDE[what]
    path = written(tmp_path, COPY % (outer, outer_path, "") + MORE % (inner, inner_path))
    assert nested_in(path) == []


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("state: lake/orders\n", ["state"]),
        ("state: lake/orders/of/p\n", ["state"]),
        ("relay: {folder: lake/items/relay}\n", ["relay.folder"]),
        ("state: lake/state\n", []),
        ("state: lake\n", []),
        ("", []),
    ],
)
def test_the_pipelines_own_folders_in_the_folder_of_a_table_are_refused(tmp_path, more, refused):
    assert nested_in(written(tmp_path, COPY % ("some", "lake", ""), more)) == refused


def test_a_pipelines_own_folders_beside_its_tables_are_none_of_theirs(tmp_path):
    assert nested_in(written(tmp_path, COPY % ("shop_only", ".", ""))) == []
