"""Many tables: what is read of the notes does not grow with their number and that of the states together."""

from databus.stores import NoteFolder, StateTable
from tests.bootstrap.filled import PHYSICAL, Shop

BALLAST = f"""CREATE TABLE ballast (id INTEGER PRIMARY KEY, n INTEGER, filler TEXT);
INSERT INTO ballast VALUES (1, 0, '{"x" * 2000}');"""
TABLE = "CREATE TABLE t{n} (id INTEGER PRIMARY KEY, a TEXT); INSERT INTO t{n} VALUES (1, 'a'), (2, 'b');"


def made(count):
    return BALLAST + "".join(TABLE.format(n=number) for number in range(count))


def test_upkeep_of_many_tables_reads_each_state_once_and_shares_what_has_not_changed(tmp_path, monkeypatch):
    """Not once for each table, which all states name."""
    parsed, from_json = [], StateTable.from_json
    with Shop(tmp_path, made(12)).captured_by_a_relay() as shop:
        shop.fill()
        shop.keeps_open = True
        for number in range(4):
            shop.execute(f"UPDATE t{number} SET a = 'c' WHERE id = 1")
            shop.fill()
        monkeypatch.setattr(StateTable, "from_json", lambda value: parsed.append(value) or from_json(value))
        copies = shop.kept_open["state"]._copies
        pinned = {source: copy.target._pinned() for (_, source), copy in copies.items()}
    states = NoteFolder(shop.config.root, PHYSICAL).states()
    for source, files in pinned.items():
        assert files == {name for state in states for name, _ in state.tables[source].files}
    assert len(pinned) > 1
    assert len(parsed) <= 2 * (13 + len(states)), "each once by the output, and once here"
    unchanged = {id(state.tables["main.t11"]) for state in states}
    assert len(unchanged) == 1
