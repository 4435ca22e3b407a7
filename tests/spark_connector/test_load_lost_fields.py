"""A group keeps the fields of its records: a schema that has lost one ends no load with NULL instead of its values."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.dataset
import pytest
from deltalake import DeltaTable

from broker.errors import ConfigError
from spark_connector.load import LoadResult, run_load
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import history, rewind
from tests.support.kafka import Kafka
from tests.support.schema_registry import Registry, schema_registry
from tests.support.topics import Topic

LOST = r"no longer has .*l \(string\), unlike in the last load of group .*: records that still have it would be loaded"


class Schemas:
    """The schema of a topic's values, in one of the places where it can be, and records by it."""

    def __init__(self, place: str, topic: str, root: Path, registry: Registry) -> None:
        self._place, self._registry, self._subject = place, registry, f"{topic}-value"
        self._file = root / ("schema.avsc" if place == "avro file" else "schema.ddl")
        self._id = 0
        self._schema: Any = None

    def become(self, **fields: str) -> dict[str, str]:
        """The options of a read with a schema of these fields: name → long or string."""
        if self._place == "json file":
            ddl = {"long": "BIGINT", "string": "STRING"}
            self._file.write_text(", ".join(f"{name} {ddl[kind]}" for name, kind in fields.items()))
            return {"valueFormat": "json", "valueSchema": str(self._file)}
        made = [{"name": name, "type": ["null", kind], "default": None} for name, kind in fields.items()]
        schema = {"type": "record", "name": "R", "fields": made}
        if self._schema is None:
            self._schema = fastavro.parse_schema(schema)
        text = json.dumps(schema)
        if self._place == "avro file":
            self._file.write_text(text)
            return {"valueFormat": "avro", "valueSchema": str(self._file)}
        written = self._registry.register(self._subject, text)
        self._id = self._id or written
        return {"valueFormat": "avro", "schema.registry.url": self._registry.url}

    def record(self, **values: Any) -> bytes:
        """By the first schema, which producers go on with."""
        if self._place == "json file":
            return json.dumps(values).encode()
        raw = io.BytesIO()
        fastavro.schemaless_writer(raw, self._schema, values)
        return (b"" if self._place == "avro file" else b"\0" + self._id.to_bytes(4)) + raw.getvalue()


class Loads:
    """Loads of a topic whose schema changes."""

    def __init__(self, topic: Topic, root: Path, format: str) -> None:
        self.topic, self.target = topic, Target(str(root / "rows"), topic.name, format=format)

    def __call__(self, options: Mapping[str, str], **more: Any) -> LoadResult:
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.topic.bootstrap,
            topic=self.topic.name,
            publish_offsets=False,
            options=options,
            **{"columns": "value.*,offset", **more},
        )

        def never() -> Any:
            raise AssertionError("a load as small as this needs no Spark")

        return run_load(request, never, lambda phase, record: None)

    def rows(self) -> list[dict[str, Any]]:
        if self.target.format == "delta":
            table = DeltaTable(self.target.to).to_pyarrow_table()
        else:
            table = pyarrow.dataset.dataset(self.target.to, partitioning="hive").to_table()
        return sorted(table.drop_columns(["load"]).to_pylist(), key=lambda row: int(row["offset"]))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as one:
        yield one


@pytest.mark.parametrize("format", ["parquet", "delta"])
@pytest.mark.parametrize("place", ["registry", "json file"])
def test_a_schema_that_has_lost_a_field_loads_nothing(
    broker: Kafka, topic: str, tmp_path: Path, registry: Registry, place: str, format: str
) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, format)
    schemas = Schemas(place, topic, tmp_path, registry)
    both = schemas.become(k="long", l="string")
    loads.topic.produce([schemas.record(k=1, l="v1")])
    loads(both)
    loads.topic.produce([schemas.record(k=2, l="v2")])
    fewer = schemas.become(k="long")
    for _ in range(2):
        with pytest.raises(ConfigError, match=LOST):
            loads(fewer)
    assert loads.rows() == [{"k": 1, "l": "v1", "offset": 0}]
    if place == "json file":
        loads(schemas.become(k="long", l="string"))
        assert loads.rows()[1] == {"k": 2, "l": "v2", "offset": 1}
    else:
        first = {**fewer, "valueSchema": f"{registry.url}/subjects/{topic}-value/versions/1"}
        with pytest.raises(ConfigError, match="was read with other options"):
            loads(first)
        loads(first, allow_changed_options=True)
        assert loads.rows()[1] == {"k": 2, "l": "v2", "offset": 1}
        loads.topic.produce([schemas.record(k=3, l="v3")])
        loads(fewer, allow_changed_options=True)
        loads.topic.produce([schemas.record(k=4, l="v4")])
        loads(fewer)  # the group goes on with what it was told
        if format == "delta":
            assert [row["l"] for row in loads.rows()] == ["v1", "v2", None, None]


@pytest.mark.parametrize(("format", "evolution"), [("parquet", "none"), ("delta", "none"), ("delta", "add,widen")])
def test_other_fields(
    broker: Kafka, topic: str, tmp_path: Path, registry: Registry, format: str, evolution: str
) -> None:
    """A table with a schema of its own takes a new field by its own rules; a directory has no rules."""
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, format)
    schemas = Schemas("json file", topic, tmp_path, registry)
    loads.topic.produce([schemas.record(k=1)])
    loads(schemas.become(k="long"))
    loads.topic.produce([schemas.record(k=2, l="x")])
    more = schemas.become(k="long", l="string")
    given = {} if format == "parquet" else {"schema_evolution": evolution}
    if evolution == "add,widen":
        loads(more, **given)
        assert [row["l"] for row in loads.rows()] == [None, "x"]
        return
    with pytest.raises(ConfigError, match="has l \\(string\\), unlike|has no column 'l'"):
        loads(more, **given)
    with pytest.raises(ConfigError, match="has k as string, not long|has column 'k' as long, not string"):
        loads(schemas.become(k="string"), **given)
    assert loads.rows() == [{"k": 1, "offset": 0}]


def test_a_field_that_the_table_does_not_get_may_go(
    broker: Kafka, topic: str, tmp_path: Path, registry: Registry
) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, "delta")
    schemas = Schemas("registry", topic, tmp_path, registry)
    options = schemas.become(k="long", l="string")
    loads.topic.produce([schemas.record(k=1, l="v1")])
    loads(options, columns="value.k as n,offset")
    loads.topic.produce([schemas.record(k=2, l="v2")])
    loads(schemas.become(k="long"), columns="value.k as n,offset")
    assert [row["n"] for row in loads.rows()] == [1, 2]


def test_an_upsert_keeps_its_fields(broker: Kafka, topic: str, tmp_path: Path, registry: Registry) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, "delta")
    schemas = Schemas("registry", topic, tmp_path, registry)
    upsert = {"mode": "upsert", "key": "k", "columns": None}
    options = schemas.become(k="long", l="string")
    loads.topic.produce([schemas.record(k=1, l="v1")])
    loads(options, **upsert)
    loads.topic.produce([schemas.record(k=1, l="v2")])
    with pytest.raises(ConfigError, match=LOST):
        loads(schemas.become(k="long"), **upsert)


def test_records_of_before_are_gone_on_from_and_a_rewind_goes_back_to_its_fields(
    broker: Kafka, topic: str, tmp_path: Path, registry: Registry
) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, "parquet")
    schemas = Schemas("json file", topic, tmp_path, registry)
    loads.topic.produce([schemas.record(k=1, l="v1")])
    first = loads(schemas.become(k="long", l="string"))
    (entry,) = history(loads.target).entries
    assert entry.record.fields == {"k": "long", "l": "string"}
    assert LoadRecord.from_json(json.loads(json.dumps(entry.record.to_json())), "here") == entry.record
    loads.topic.produce([schemas.record(k=2, l="v2")])
    fewer = schemas.become(k="long")
    loads(fewer, allow_changed_options=True)
    rewind(loads.target, str(first.load_id))
    with pytest.raises(ConfigError, match=LOST):
        loads(fewer)
    for path in loads_of(Path(loads.target.to)):
        document = json.loads(path.read_text())
        del document.get("load", document)["fields"]
        path.write_text(json.dumps(document))
    loads(fewer)


def loads_of(root: Path) -> list[Path]:
    return [*root.glob("_offsets/*/*.json")]


def test_a_load_without_formats_has_no_fields(broker: Kafka, topic: str, tmp_path: Path) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, "parquet")
    loads.topic.produce([b"x"])
    loads({}, columns="value,offset")
    (entry,) = history(loads.target).entries
    assert entry.record.fields is None
    assert "fields" not in entry.record.to_json()
