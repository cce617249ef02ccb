"""`databus plugins` and `databus schema`: what there is, and what a file may hold, as an editor is told."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from databus.pipeline import pipeline_schema, validate
from tests.commands import databus, failed
from tests.documents.pages import PAGES, blocks

SECTIONS = {"name", "state", "relay", "spark", "run", "storage", "sources", "inputs", "filters", "outputs"}
PLUGIN = """\
from typing import ClassVar

from pydantic import Field

from databus.pipeline import Delivery, Output, OutputConfig


class PostboxConfig(OutputConfig):
    \"\"\"Options of the postbox.\"\"\"

    pages_max: int = Field(7, ge=1, description="How many pages it takes.")


class Postbox(Output):
    config_model: ClassVar = PostboxConfig
    delivery: ClassVar = Delivery.AT_LEAST_ONCE

    def write(self, batch):
        raise NotImplementedError
"""


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    """An installed distribution that brings an output, and one that does not load."""
    folder = tmp_path / "installed"
    about = folder / "post-2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: post\nVersion: 2\n")
    (about / "entry_points.txt").write_text("[databus.outputs]\npostbox = post:Postbox\nbroken = nowhere:Postbox\n")
    (folder / "post.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return folder


def test_plugins_are_listed_with_where_they_come_from_also_those_that_do_not_load(installed):
    found = {(each["kind"], each["type"]): each for each in json.loads(databus("plugins", "list", "--json").stdout)}
    assert found["output", "delta"]["origin"] == "built in"
    assert found["output", "postbox"]["origin"] == "post:Postbox of post 2"
    assert found["output", "postbox"]["delivery"] == "at_least_once"
    assert "nowhere" in found["output", "broken"]["error"]
    assert {kind for kind, _ in found} == {"input", "filter", "output"}


def test_the_options_of_a_plugin_are_shown_with_what_they_mean(installed):
    shown = databus("plugins", "show", "postbox").stdout
    assert "output postbox: post:Postbox of post 2; delivery at_least_once" in shown
    assert "pages_max: integer, at least 1, default `7`\n      How many pages it takes." in shown
    in_a_file = databus("plugins", "show", "post.py:Postbox", cwd=installed).stdout
    assert "How many pages it takes." in in_a_file
    assert 'did you mean "postbox"?' in failed(databus("plugins", "show", "postbax"), 2)
    assert "there are databus, mock, " in failed(databus("plugins", "show", "zzz"), 2)
    assert "does not load" in failed(databus("plugins", "show", "broken"), 2)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = pipeline_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def errors_of(validator, text: str) -> list[str]:
    found = validator.iter_errors(yaml.safe_load(text))
    return sorted(f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in found)


def test_the_schema_accepts_every_whole_pipeline_of_the_documentation(validator):
    texts = [each.text for page in PAGES for each in blocks(page) if each.language == "yaml"]
    read = [(each, yaml.safe_load(each)) for each in texts]
    whole = [text for text, value in read if isinstance(value, dict) and {"outputs"} <= value.keys() <= SECTIONS]
    assert len(whole) > 3
    assert [(each, errors_of(validator, each)) for each in whole if errors_of(validator, each)] == []


HEAD = "sources: {shop: {type: sqlite, path: shop.db}}\ninputs: {shop: {type: databus}}\n"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f"{HEAD}outputs: {{copy: {{type: delta, from: shop, path: a, mod: mirror}}}}", "outputs.copy: "),
        (f"{HEAD}outputs: {{copy: {{type: delta, path: a, mode: mirror}}}}", "outputs.copy: "),
        (f"{HEAD}outputs: {{copy: {{type: deltta, from: shop}}}}", "outputs.copy.type: "),
        (f"{HEAD}run: {{trigger_ms: soon}}\noutputs: {{}}", "run.trigger_ms: "),
        (f"{HEAD}relay: {{log: {{retention_bytes: 1}}}}\noutputs: {{}}", "relay.log: "),
        ("sources: {shop: {type: sqlite, tabels: []}}", "sources.shop: "),
        ("ouputs: {}", ": "),
    ],
)
def test_the_schema_refuses_what_validate_refuses(validator, text, where, tmp_path):
    (found, *_) = errors_of(validator, text)
    assert found.startswith(where), found
    (tmp_path / "databus.yml").write_text(text)
    assert [each for each in validate(tmp_path / "databus.yml") if not each.is_warning]


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}run: {{trigger_ms: '${{TRIGGER}}'}}\noutputs: {{c: {{type: count, from: [shop]}}}}",
        f"{HEAD}outputs: {{post: {{type: 'postbox.py:Postbox', from: shop, anything: 1}}}}",
        "storage: {s3: {allow_http: true, region: x}}\nrelay: {url: '${RELAY}'}",
    ],
)
def test_the_schema_leaves_references_and_classes_of_one_s_own_alone(validator, text):
    assert errors_of(validator, text) == []


def test_the_command_prints_the_schema(validator):
    assert json.loads(databus("schema").stdout) == validator.schema
