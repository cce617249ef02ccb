"""Masks: hashes are those of HMAC-SHA-256, nothing else of a value is left, and the salt stays a secret."""

import hashlib
import hmac

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import ConfigError
from databus.flow import TableFilters
from databus.flow._hmac import hmac_hex
from databus.pipeline import validate
from databus.pipeline.filters import MaskFilter
from databus.pipeline.filters._tablewide import MaskConfig
from databus.schema import Column, TableSchema, sink_schema

SALT = "a salt of some length"


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=200), st.sampled_from([b"x" * n for n in (55, 56, 63, 64, 119)]))),
    st.binary(min_size=1, max_size=100),
    st.integers(0, 3),
)
def test_the_kernel_makes_the_hmac_of_each_value(values, key, start):
    array = pa.array(values, pa.binary()).slice(min(start, len(values)))
    expected = [
        None if each is None else hmac.new(key, each, hashlib.sha256).hexdigest()
        for each in values[len(values) - len(array) :]
    ]
    assert hmac_hex(array, key).to_pylist() == expected


def mask(**options):
    return MaskFilter(MaskConfig(**{"from": "x", "salt": SALT, **options}), None)


def over(table, each):
    return TableFilters("shop", [("filters.m", each.in_tasks)], {}.__getitem__, lambda _: table).over(table)[0]


TABLE = TableSchema(
    "main.people",
    (
        Column("id", "int64", nullable=False),
        Column("email", "string"),
        Column("photo", "binary"),
        Column("born", "date"),
        Column("price", "decimal(9,2)"),
        Column("weight", "float64"),
    ),
    ("id",),
)
ROWS = [
    {"id": 1, "email": "é@x.ch", "photo": b"\x01\x02\x03", "born": None, "price": None, "weight": 1.5},
    {"id": -(2**63), "email": None, "photo": None, "born": None, "price": None, "weight": None},
]


def digest(value):
    return hmac.new(SALT.encode(), value, hashlib.sha256).hexdigest()


def test_each_way_of_masking_over_its_types():
    step = over(TABLE, mask(hash=["ID", "email"], redact=["weight", "born"], truncate={"photo": 2}))
    rows = step.apply(pa.Table.from_pylist(ROWS, schema=sink_schema(TABLE)))
    assert rows.schema.equals(sink_schema(step.after))
    assert step.after.key == ("id",)
    assert rows.to_pylist() == [
        {"id": digest(b"1"), "email": digest("é@x.ch".encode()), "photo": b"\x01\x02"}
        | dict.fromkeys(("born", "price", "weight")),
        {"id": digest(b"-9223372036854775808")} | dict.fromkeys(("email", "photo", "born", "price", "weight")),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"redact": ["id"]}, "filters.m: shop/main.people: redact: column id is part of the key"),
        ({"truncate": {"id": 1}}, "truncate: column id is part of the key"),
        ({"truncate": {"weight": 1}}, "truncate: column weight is float64"),
        ({"hash": ["price"]}, "hash: column price is decimal"),
        ({"hash": ["weight"]}, "hash: column weight is float64"),
    ],
)
def test_what_cannot_be_masked_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        over(TABLE, mask(**options))


def test_the_salt_is_in_no_message(tmp_path, monkeypatch):
    monkeypatch.setenv("MASK_SALT", "short secret")
    path = tmp_path / "databus.yml"
    path.write_text(
        "sources: {shop: {type: sqlite, path: shop.db}}\n"
        "inputs: {shop: {type: databus}}\n"
        "filters: {m: {type: mask, from: shop, hash: [email], salt: '${MASK_SALT}'}}\n"
        "outputs: {o: {type: count, from: m}}\n"
    )
    said = "\n".join(str(each) for each in validate(path))
    assert "filters.m: hash needs a `salt` of at least 16 bytes" in said
    assert "short secret" not in said
    assert SALT not in repr(mask(hash=["a"]).config)
    assert SALT not in str(mask(hash=["a"]).config)
