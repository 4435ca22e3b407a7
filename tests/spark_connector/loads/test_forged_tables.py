"""What a stranger has written into a table's own log: each place × each forgery is a LoadError that says where.

Files and ZooKeeper are in files/test_hostile_records.py. The forgeries are put in the place of what a load has stored.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.errors import PykafkaError
from spark_connector.destinations import open_destination
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.maintenance import history, recover, rewind, targets
from tests.support.table_harness import TableWorld, delta_world, iceberg_world, sqlite_world

Store = Callable[[str], None]
"""Puts a text where the record of the newest load stands."""


def in_database(root: Path) -> tuple[TableWorld, Store]:
    world = sqlite_world(root)

    def store(text: str) -> None:
        forge(world, "UPDATE pykafka_loads SET record = ?", text)

    return world, store


def forge(world: Any, statement: str, value: object) -> None:
    with contextlib.closing(sqlite3.connect(world.address.url.removeprefix("sqlite:///"))) as database, database:
        database.execute(statement, (value,))


def in_delta(root: Path) -> tuple[TableWorld, Store]:
    world = delta_world(root)
    log = sorted(Path(world.output.url.removeprefix("file://"), "_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in log.read_text().splitlines()]

    def store(text: str) -> None:
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["userMetadata"] = f'{{"pykafka.load": {text}}}'
        log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))

    return world, store


def in_iceberg(root: Path, of_summary: bool) -> tuple[TableWorld, Store]:
    world = iceberg_world(root)
    file = Path(world.table().metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())

    def store(text: str) -> None:
        if of_summary:
            metadata["snapshots"][-1]["summary"]["pykafka.load"] = text
        else:
            metadata["properties"][f"pykafka.load.{world.group}"] = f'{{"offsets": {{}}, "record": {text}}}'
        file.write_text(json.dumps(metadata))

    return world, store


PLACES: dict[str, Callable[[Path], tuple[TableWorld, Store]]] = {
    "database": in_database,
    "delta": in_delta,
    "iceberg property": lambda root: in_iceberg(root, False),
    "iceberg snapshot": lambda root: in_iceberg(root, True),
}
TEXTS = [
    "",
    "null",
    "[]",
    '"x"',
    "[" * 100_000,
    "NaN",
    "9" * 5000,
    '{"version": 1, "version": 1}',
    "{",
    '{"a": "\\ud800"}',
]
FIELDS: dict[str, list[object]] = {
    "version": [None, 1e400, "1", -1, 10**30, "x" * 100_000],
    "load_id": ["../q-000001-aaaaaaaa", "x" * 60_000, "\x00", None, "q-²-aaaaaaaa"],
    "format": ["../x", 7, "delta\n"],
    "created_ms": [float("nan"), -2, 2**63, True],
    "ranges": [[7], None, [{"topic": "..", "partition": 0, "start": 0, "end": 1, "stored": None}]],
    "topic_ids": [{"../t": "x"}, {"t": 7}, []],
    "positions": [{"t": {"²": [1, 1]}}, {"t": {"0": 5}}, {"t": {"0": [1]}}, {"t": {"0": [1, 2, 3]}}],
    "dead_letters": ["x", [None], ["topic:x"]],
    "reading": [{"kafka.bootstrap.servers": "x"}, {"where": 7}],
    "output": ["half \ud800", 7],
}


@pytest.mark.parametrize("place", PLACES)
def test_whatever_stands_for_a_record_is_a_load_error_that_says_where(place: str, tmp_path: Path) -> None:
    world, store = PLACES[place](tmp_path)
    with open_destination(world.target) as opened:
        record = opened.log.record(1)
    assert record is not None
    written = record.to_json()
    forged = [json.dumps({**written, name: value}) for name, values in FIELDS.items() for value in values]
    for text in [*TEXTS, *forged]:
        store(text)
        with pytest.raises(LoadError, match=r" of group-|lake\.rows|table-\d|load 1 of group") as raised:
            history(world.target)
        assert len(str(raised.value)) < 1000, text[:100]
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    acts: list[Callable[[], object]] = [world.load, lambda: recover(world.target), lambda: targets(world.target.to)]
    for act in (*acts, lambda: rewind(world.target, record.load_id)):
        with contextlib.suppress(PykafkaError):
            act()
    assert before <= {path for path in tmp_path.rglob("*") if path.is_file()}, "nothing is deleted"


@pytest.mark.parametrize("value", ["x", -1, 1.5, b"x", 2**70 * 1.0])
@pytest.mark.parametrize("column", ["partition", "next_offset"])
def test_offsets_in_a_database_are_numbers(column: str, value: object, tmp_path: Path) -> None:
    world = sqlite_world(tmp_path)
    forge(world, f"UPDATE pykafka_offsets SET {column} = ? WHERE partition = 1", value)
    with pytest.raises(LoadError, match=f"the offsets of group '{world.group}' in .*{column} is "):
        world.load()


def test_a_record_of_bytes_in_a_database_is_read_as_its_text(tmp_path: Path) -> None:
    world = sqlite_world(tmp_path)
    forge(world, "UPDATE pykafka_loads SET record = ?", b"\xff")
    with pytest.raises(LoadError, match="is not JSON"):
        history(world.target)


def test_a_name_or_a_value_that_readers_may_read_otherwise_is_refused() -> None:
    for text in (
        '{"a": {"b": 1, "b": 2}}',
        '{"a": Infinity}',
        '{"a": "\\udc00"}',
        b'{"a": "\xed\xa0\x80"}',
        b"\xff\xfe{\0",
    ):
        with pytest.raises(LoadError, match=r"^here is not JSON: "):
            LoadRecord.from_bytes(text, "here")
