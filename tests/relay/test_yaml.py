from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, BeforeValidator

from databus.core import ConfigError
from databus.formats import load_yaml, parse_yaml, substitute, text_of_setting, validated

OTHER_BASES = ("0123456", "010", "-07", "1:30", "190:20:30.15", "0x1F", "0b11", "00")
BILLIONS = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2", "f.yml:4:3: key 'c' appears twice"),
        ("on: 1", 'f.yml:1:1: a key must be a string; write "on" with quotes'),
        ("a: [", "f.yml:1:5: expected the node content"),
        ("a:\n  b: 1\n\tc: 2", "f.yml:3:1: a tab; YAML allows only spaces"),
        ("a:\n  - b:\n    c: 1\n  d:\n    e: 1", "f.yml:4:3: does not fit what stands above it"),
        ("- 1", "f.yml: expected keys and values at the top, such as `name: shop`, found a list"),
        ('a: "b\nc: 1\n', "the quotes that begin in line 1 do not end"),
        ("a: !!python/object:os.system x", "f.yml:1:4: could not determine a constructor"),
        ("a: &a [*a]", "f.yml:1:4: nested deeper than 64"),
        ("a: \x00", "f.yml: not YAML"),
        *((f"a: {written}", "f.yml:1:4: YAML reads this as a number in another base") for written in OTHER_BASES),
        ("a: [x, {b: 0123456}]", "f.yml:1:12: YAML reads this"),
        (BILLIONS, "more than 1,000,000 values"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yml")
    assert message in str(caught.value)


@pytest.mark.parametrize("written", ["0", "7", "-12", "1_000", "0.50", ".5", "1.0e+3", ".inf"])
def test_numbers_that_are_what_they_look_like_are_taken(written: str) -> None:
    assert parse_yaml(f"a: {written}", "f.yml") == {"a": float(written.replace(".inf", "inf"))}


@pytest.mark.parametrize("written", ["0123456", "1_000", "1.10", "1:30", "1e5", "2026-01-02", "yes"])
def test_a_text_without_quotes_comes_as_it_stands_or_is_refused_with_the_hint_to_quote_it(written: str) -> None:
    class Options(BaseModel):
        password: Annotated[str, BeforeValidator(text_of_setting)]

    if written in ("1e5", "yes"):  # no number in YAML, and Kafka's word for it
        assert validated(Options, parse_yaml(f"password: {written}", "f.yml")).password in (written, "true")
        return
    with pytest.raises(ConfigError, match="with quotes"):
        validated(Options, parse_yaml(f"password: {written}", "f.yml"))


def test_a_merge_key_takes_over_what_an_alias_names() -> None:
    text = "base: &base {kind: kafka, to: a}\none: {<<: *base, to: b}\ntwo:\n  <<: [*base, {more: 1}]\n"
    found = parse_yaml(text, "f.yml")
    assert found["one"] == {"kind": "kafka", "to": "b"}
    assert found["two"] == {"kind": "kafka", "to": "a", "more": 1}


def test_references_are_replaced_in_string_leaves_only_and_never_change_the_shape(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("pw: [1, 2]\n")
    value = parse_yaml(
        "${NAME}: '${NAME}'\nlist: ['${GONE:}', '${GONE:a:b}x', '$${NAME}']\nfile: '${file:secret}'\nnumber: 7\n",
        "f.yml",
    )
    assert substitute(value, folder=tmp_path, environ={"NAME": "{a: ${OTHER}}"}) == {
        "${NAME}": "{a: ${OTHER}}",
        "list": ["", "a:bx", "${NAME}"],
        "file": "pw: [1, 2]",
        "number": 7,
    }


@pytest.mark.parametrize("leaf", ["${GONE}", "${file:gone}", "${", "${A-B}"])
def test_a_reference_to_nothing_names_the_path(leaf: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^outputs\.search\[1\]\.url: "):
        substitute({"outputs": {"search": ["x", {"url": leaf}]}}, folder=tmp_path, environ={})


def test_a_missing_or_oversized_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yml: No such file or directory; `databus init` writes one"):
        load_yaml(tmp_path / "gone.yml")
    (tmp_path / "big.yml").write_bytes(b"#" * (4 << 20) + b"\n")
    with pytest.raises(ConfigError, match="at most"):
        load_yaml(tmp_path / "big.yml")
