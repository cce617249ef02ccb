"""Mistakes in a configuration are said in plain words, and no secret with them."""

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from databus.core import ConfigError
from databus.formats import substitute, validated


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rows_max: int = Field(1, ge=1, le=100)
    ratio: float = Field(0.5, gt=0)
    mode: Literal["mirror", "history"] = "mirror"
    kind: Literal["none"] | int = 1
    merge: bool = False
    path: str = Field("x", min_length=1)
    key: str | dict[str, str] | None = None
    tables: list[str] = []
    password_port: int = 1


MISTAKES = {
    "text for a number": ({"rows_max": "many"}, 'o.rows_max: "many" is not a whole number'),
    "a fraction": ({"rows_max": 1.5}, "o.rows_max: 1.5 is not a whole number"),
    "nothing for a number": ({"rows_max": None}, "o.rows_max: null is not a whole number"),
    "a list for a number": ({"rows_max": [1]}, "o.rows_max: a list is not a whole number"),
    "too small": ({"rows_max": 0}, "o.rows_max: 0 is below 1"),
    "too large": ({"rows_max": 101}, "o.rows_max: 101 is above 100"),
    "not above": ({"ratio": 0}, "o.ratio: 0 is not above 0"),
    "text for a fraction": ({"ratio": "half"}, 'o.ratio: "half" is not a number'),
    "none of a choice": ({"mode": "mirorr"}, 'o.mode: "mirorr" is neither "mirror" nor "history"'),
    "neither word nor number": ({"kind": "few"}, 'o.kind: "few" is neither "none" nor a whole number'),
    "no truth": ({"merge": "maybe"}, 'o.merge: "maybe" is not true or false'),
    "empty text": ({"path": ""}, "o.path: empty"),
    "a number for text": ({"path": 7}, "o.path: 7 is not text; write it with quotes if it is"),
    "none of several forms": ({"key": 3}, "o.key: 3 is neither text nor keys and values"),
    "a wrong item": ({"tables": ["a", 1]}, "o.tables[1]: 1 is not text; write it with quotes if it is"),
    "a name for a list": ({"tables": "orders"}, 'o.tables: "orders" is not a list'),
    "an unknown option": ({"tabels": []}, 'o.tabels: there is no such option; did you mean "tables"?'),
    "under a secret name": ({"password_port": "hunter2"}, "o.password_port: what stands there is not a whole number"),
    "from a reference": (
        substitute({"rows_max": "${PASSWORD_X}"}, environ={"PASSWORD_X": "hunter2"}),
        "o.rows_max: what stands there is not a whole number",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_the_path_the_value_and_what_is_expected(mistake):
    value, expected = MISTAKES[mistake]
    with pytest.raises(ConfigError) as caught:
        validated(Options, value, "o")
    assert str(caught.value) == expected


def test_each_mistake_has_a_line_of_its_own():
    with pytest.raises(ConfigError) as caught:
        validated(Options, {"rows_max": "x", "mode": 1})
    assert str(caught.value).splitlines() == [
        'rows_max: "x" is not a whole number',
        'mode: 1 is neither "mirror" nor "history"',
    ]


def test_a_choice_that_is_missing_is_named_with_what_there_is_to_choose():
    class Copy(BaseModel):
        mode: Literal["mirror", "history"]

    with pytest.raises(ConfigError) as raised:
        validated(Copy, {}, "o")
    assert str(raised.value) == 'o.mode: missing; write "mirror" or "history"'
