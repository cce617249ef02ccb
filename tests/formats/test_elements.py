"""Elements of JSON documents: Arrow's reader and Python's say the same of every text, JSON or not."""

import json
import random
from typing import Any

import pyarrow as pa

from databus.formats._elements import Elements, _by_itself, elements
from databus.schema import Column

COLUMNS = [
    Column("a", "int32"),
    Column("b", "string"),
    Column("c", "decimal(6,2)"),
    Column("d", "bool"),
    Column("e", "float64"),
    Column("f", "float32"),
    Column("g", "timestamp"),
]
VALUES: list[Any] = [
    0, -1, 7, 2**31, 1.5, 0.1, 1e300, 12345.678, True, False, None, "", "x", 'é\n"\\', "1.25", "2026-01-31 12:00:00",
    [], {}, [1, [2]], {"a": {"b": []}},
]  # fmt: skip
LETTERS = '[]{},:"0123456789.eE+-ntfalsru \n\t\\/é'


def document(rng: random.Random) -> str:
    def one() -> Any:
        if rng.random() < 0.1:
            return rng.choice(VALUES)
        return {name: rng.choice(VALUES[: rng.choice((3, len(VALUES)))]) for name in rng.sample("abcdefgh", 3)}

    made = [one() for _ in range(rng.randrange(4))]
    text = json.dumps(made if rng.random() < 0.8 else one(), ensure_ascii=rng.random() < 0.5)
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice((*LETTERS, "")) + text[at + rng.randrange(2) :]
    return text


def told(found: Elements) -> Any:
    problem = None if found.problem is None else found.problem.place
    return found.of.tolist(), found.ordinals.tolist(), [each.to_pylist() for each in found.columns], problem


def test_a_document_means_the_same_among_others_and_by_itself(seed):
    rng = random.Random(seed)
    for _ in range(60):
        documents = [document(rng) for _ in range(rng.randrange(1, 30))]
        parts = [_by_itself(text.strip(" \t\r\n"), COLUMNS, at) for at, text in enumerate(documents)]
        of, ordinals, columns, problem = told(elements(pa.array(documents, pa.large_string()), COLUMNS))
        alone = [told(part) for part in parts]
        assert of == [each for part in alone for each in part[0]], documents
        assert ordinals == [each for part in alone for each in part[1]]
        assert repr(columns) == repr([[each for part in alone for each in part[2][n]] for n in range(len(COLUMNS))])
        assert problem == next((part[3] for part in alone if part[3] is not None), None)


def test_an_element_more_or_less_costs_no_place():
    documents = pa.array([None, "[]", '[{"a": 1}, null]', "null", '{"a": 2}'], pa.large_string())
    found = elements(documents.slice(1), COLUMNS[:1])
    assert told(found) == ([1, 1, 3], [1, 2, 1], [[1, None, 2]], None)
