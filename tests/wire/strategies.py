"""Any table of any types with any rows, as frames hold them."""

import datetime as dt
import struct
from decimal import Context, Decimal

import pyarrow as pa
from hypothesis import strategies as st

from databus.core import ChangeType
from databus.schema import BUS_FIELDS, TYPE_NAMES, Column, TableSchema, forms_of, frame_schema
from databus.wire import Commit, Group, Rows

INTEGERS = {f"{sign}int{bits}": (sign == "", bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
_CONTEXT = Context(prec=60)
TEXT = st.text(max_size=30) | st.sampled_from(["", "\0", "ä€😀", "null", " " * 100])


def _extremes(low, high):
    return st.integers(low, high) | st.sampled_from([low, high])


def _float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


@st.composite
def types(draw):
    name = draw(st.sampled_from(TYPE_NAMES))
    if name == "decimal(p,s)":
        precision = draw(st.integers(1, 38))
        return f"decimal({precision},{draw(st.integers(0, precision))})"
    return name


def values(type_name):
    """Values of a column type, the extremes among them."""
    if type_name in INTEGERS:
        is_signed, bits = INTEGERS[type_name]
        return _extremes(-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else _extremes(0, (1 << bits) - 1)
    if type_name.startswith("decimal"):
        arrow = forms_of(type_name).arrow
        top = 10**arrow.precision - 1
        return _extremes(-top, top).map(lambda n: Decimal(n).scaleb(-arrow.scale, _CONTEXT))
    return {
        "bool": st.booleans(),
        "float32": st.floats(width=32, allow_nan=False).map(_float32),
        "float64": st.floats(allow_nan=False),
        "string": TEXT,
        "binary": st.binary(max_size=30),
        "date": st.dates(),
        "timestamp": st.datetimes(),
        "timestamptz": st.datetimes(timezones=st.just(dt.UTC)),
    }[type_name]


@st.composite
def tables(draw, name="main.t"):
    names = draw(
        st.lists(
            st.text(min_size=1, max_size=8).filter(lambda text: not text.startswith("_") and text.isprintable()),
            min_size=1,
            max_size=6,
            unique=True,
        )
    )
    columns = tuple(
        Column(each, draw(types()), draw(st.booleans()), draw(st.sampled_from(["", "varchar(20)"]))) for each in names
    )
    return TableSchema(name, columns, (names[0],) if draw(st.booleans()) else ())


@st.composite
def batches(draw, table, pairs):
    """A frame's rows with these pairs."""
    count = len(pairs)
    arrays = []
    for column in table.columns:
        one = values(column.type)
        cells = draw(st.lists(one | st.none() if column.nullable else one, min_size=count, max_size=count))
        arrays.append(pa.array(cells, forms_of(column.type).arrow))
    kinds = draw(st.lists(st.sampled_from([kind.value for kind in ChangeType]), min_size=count, max_size=count))
    bus = [kinds, [scn for scn, _ in pairs], [seq for _, seq in pairs], [scn % 10**15 for scn, _ in pairs]]
    bus += [[f"tx-{scn}" for scn, _ in pairs], [False] * count]
    arrays += [pa.array(cells, field.type) for cells, field in zip(bus, BUS_FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=frame_schema(table))


@st.composite
def groups(draw):
    """Transactions over several tables, in one group."""
    count = draw(st.integers(0, 3))
    names = [f"main.t{i}" for i in range(count)]
    first = draw(st.integers(1, (1 << 63) - 100))
    frames, last = [], (first, 0)
    for name in names:
        table = draw(tables(name))
        steps = draw(st.lists(st.booleans(), min_size=1, max_size=5))
        pairs, scn, seq = [], first, 0
        for is_next in steps:
            scn, seq = (scn + 1, 1) if is_next else (scn, seq + 1)
            pairs.append((scn, seq))
        frames.append(Rows(table, draw(batches(table, pairs))))
        last = max(last, pairs[-1])
    position = draw(st.dictionaries(TEXT, TEXT | st.integers(), max_size=3))
    commit = Commit(*last, draw(TEXT), position, draw(st.integers(0, 1 << 60)), continues=draw(st.booleans()))
    return Group(commit, tuple(frames), snapshot=draw(st.booleans()))
