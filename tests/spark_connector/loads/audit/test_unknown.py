"""A verification that could not look says `unknown`, what it could not read, and ends with 3: destinations × ways."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from broker.client.admin import Admin
from broker.errors import BrokerError, ErrorCode
from broker.storage.storage import LocalStorage
from broker.verdict import Verdict
from spark_connector.load import run_load
from spark_connector.loads.audit.verify import Verification
from spark_connector.loads.delta.delta_table import DeltaDestination
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.iceberg.iceberg_table import IcebergDestination
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import verify
from tests.support.console import answer_of, error_of, verdict_of
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

JSON = {"valueFormat": "json", "valueSchema": "n INT"}
KINDS = ["parquet", "delta", "iceberg"]


class Loads:
    """Two loads of one group: records 0 to 3 and 4 to 7 of one partition, each with a bad record; without Spark."""

    def __init__(self, topic: Topic, root: Path, format: str, **arguments: Any) -> None:
        self.topic, self.format, self.letters = topic, format, str(root / "bad")
        catalog = add_catalog(root)
        to = "iceberg:lake.rows" if format == "iceberg" else str(root / "rows")
        self.target = Target(to, f"g-{topic.name}", format=format, catalog=catalog if format == "iceberg" else None)
        given: dict[str, Any] = {"dead_letters": f"delta:{self.letters}", "options": JSON, **arguments}
        for _ in range(2):
            topic.produce([b'{"n": 1}', b"{", b'{"n": 2}', b'{"n": 3}'], partition=0, key=b"k")
            request = LoadRequest.build(
                self.target, bootstrap_servers=topic.bootstrap, topic=topic.name, publish_offsets=False, **given
            )
            assert run_load(request, _no_spark, lambda phase, record: None).rows == 3

    def verified(self) -> Verification:
        return verify(self.target, self.topic.bootstrap)

    @property
    def words(self) -> list[str]:
        catalog = ["--catalog", self.target.catalog] if self.target.catalog else []
        place = ["--to", self.target.to, "--group", self.target.group, "--format", self.format, *catalog]
        return ["loads", "verify", *place]


def _no_spark() -> Any:
    raise AssertionError("a load as small as this needs no Spark")


@pytest.fixture
def kafka_topic(broker: Kafka, topic: str) -> Topic:
    return Topic(broker.bootstrap, topic)


# --- ways of not being able to look: each breaks something, and says which words name it


Way = Callable[[Loads, pytest.MonkeyPatch], str]


def all_records_gone(loads: Loads, _: pytest.MonkeyPatch) -> str:
    Topic.eat(loads.topic.bootstrap, loads.topic.name, 0, 8)
    return "4 of 4 offsets are no longer in the log"


def some_records_gone(loads: Loads, _: pytest.MonkeyPatch) -> str:
    Topic.eat(loads.topic.bootstrap, loads.topic.name, 0, 2)
    return "2 of 4 offsets are no longer in the log"


def the_topic_gone(loads: Loads, _: pytest.MonkeyPatch) -> str:
    loads.topic.delete()
    return "4 of 4 offsets are no longer in the log"


def no_right_to_the_files(loads: Loads, patched: pytest.MonkeyPatch) -> str:
    _fail_to_read(loads, patched, PermissionError(errno.EACCES, "Permission denied"))
    return "Permission denied"


def the_store_away(loads: Loads, patched: pytest.MonkeyPatch) -> str:
    _fail_to_read(loads, patched, OSError(errno.EIO, "Input/output error"))
    return "Input/output error"


def _fail_to_read(loads: Loads, patched: pytest.MonkeyPatch, error: OSError) -> None:
    """When the rows of the loads are read; not their dead letters, log and manifests."""

    def fail(*_: object) -> Iterator[Any]:
        raise error

    if loads.format == "parquet":
        real = LocalStorage.open_input
        patched.setattr(LocalStorage, "open_input", lambda self, path: fail() if "load=" in path else real(self, path))
    elif loads.format == "delta":
        real_rows = DeltaDestination.read_rows

        def read_rows(self: Any, table: Any, load_ids: Any) -> Any:
            return fail() if self.url.endswith("/rows") else real_rows(self, table, load_ids)

        patched.setattr(DeltaDestination, "read_rows", read_rows)
    else:
        patched.setattr(IcebergDestination, "read_rows", fail)


def a_column_gone(loads: Loads, _: pytest.MonkeyPatch) -> str:
    if loads.format == "delta":
        rows = DeltaTable(loads.target.to).to_pyarrow_table().drop_columns(["offset"])
        write_deltalake(loads.target.to, rows, mode="overwrite", schema_mode="overwrite")
    else:
        assert loads.target.catalog is not None
        with open_catalog(loads.target.catalog).load_table("lake.rows").update_schema() as changed:
            changed.delete_column("offset")
    return "has no column offset"


def the_dead_letters_without_a_column(loads: Loads, _: pytest.MonkeyPatch) -> str:
    rows = DeltaTable(loads.letters).to_pyarrow_table().drop_columns(["offset"])
    write_deltalake(loads.letters, rows, mode="overwrite", schema_mode="overwrite")
    return "its 1 dead letters were not compared: the Delta table has no column offset"


WAYS: list[Way] = [
    *(all_records_gone, some_records_gone, the_topic_gone, no_right_to_the_files, the_store_away, a_column_gone),
    the_dead_letters_without_a_column,
]


@pytest.mark.parametrize(
    ("format", "way"),
    [
        pytest.param(format, way, id=f"{format}-{way.__name__}")
        for format in KINDS
        for way in WAYS
        if (format, way) != ("parquet", a_column_gone)  # a file of a load without it is damaged, which is a mismatch
    ],
)
def test_what_could_not_be_looked_at_is_unknown(
    kafka_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, way: Way
) -> None:
    loads = Loads(kafka_topic, tmp_path, format)
    assert loads.verified().verdict is Verdict.OK
    named = way(loads, monkeypatch)
    found = loads.verified()
    assert (found.verdict, found.ok, found.problems) == (Verdict.UNKNOWN, False, ())
    first = found.loads[0]
    assert (first.verdict, first.problems) == (Verdict.UNKNOWN, ())
    assert any(named in text for text in first.unread), first.unread


@pytest.mark.parametrize("format", KINDS[1:])
def test_dead_letters_are_compared_though_the_rows_have_no_position(
    kafka_topic: Topic, tmp_path: Path, format: str
) -> None:
    """The columns of the load say nothing about those of its dead letters."""
    loads = Loads(kafka_topic, tmp_path, format, columns="value.n,partition,offset")
    found = loads.verified()
    assert (found.verdict, [load.totals[1:4] for load in found.loads]) == (Verdict.UNKNOWN, [(3, 3, 1)] * 2)
    assert all("only their number was compared, 4 with 4" in text for load in found.loads for text in load.unread)
    if format == "delta":
        DeltaTable(loads.target.to).delete('n = 2 AND "offset" = 2')
    else:
        assert loads.target.catalog is not None
        open_catalog(loads.target.catalog).load_table("lake.rows").delete("offset = 2")
    found = loads.verified()
    assert found.loads[0].verdict is Verdict.MISMATCH
    assert "3 rows were committed, 2 are in the table" in found.loads[0].problems
    document = json.loads(verdict_of(*loads.words, "-b", kafka_topic.bootstrap, "--json"))
    assert [document["verdict"], *(load["verdict"] for load in document["loads"])] == [
        "mismatch",
        "mismatch",
        "unknown",
    ]


def test_a_lost_dead_letter_is_a_mismatch_whatever_the_columns(kafka_topic: Topic, tmp_path: Path) -> None:
    loads = Loads(kafka_topic, tmp_path, "delta", columns="value.n")
    DeltaTable(loads.letters).delete('"offset" = 1')
    assert [load.verdict for load in loads.verified().loads] == [Verdict.MISMATCH, Verdict.UNKNOWN]


def test_the_policy_of_a_topic_that_may_not_be_read_is_told(
    kafka_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides whether rows that the log lacks are wrong: here all of them."""
    loads = Loads(kafka_topic, tmp_path, "parquet")

    def denied(*_: object) -> None:
        raise BrokerError(ErrorCode.topic_authorization_failed)

    monkeypatch.setattr(Admin, "describe_configs", denied)
    monkeypatch.setattr("spark_connector.loads.audit.kafka_log.keep_offsets", lambda ranges, filters: [])
    first = loads.verified().loads[0]
    assert first.verdict is Verdict.UNKNOWN
    assert any("(cleanup.policy) could not be read: TOPIC_AUTHORIZATION_FAILED" in text for text in first.unread)


def test_the_command_ends_with_3_and_says_what_it_could_not_read(
    kafka_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = Loads(kafka_topic, tmp_path, "delta")
    some_records_gone(loads, monkeypatch)
    at = ("-b", kafka_topic.bootstrap)
    document = json.loads(verdict_of(*loads.words, *at, "--json", status=3))
    assert (document["verdict"], document["ok"]) == ("unknown", False)
    first, second = document["loads"]
    assert (first["verdict"], second["verdict"]) == ("unknown", "ok")
    assert first["unread"] == [f"{kafka_topic.name}-0: 2 of 4 offsets are no longer in the log"]
    lines = verdict_of(*loads.words, *at, status=3).splitlines()
    assert f"{first['load_id']}: unknown: {first['unread'][0]}" in lines
    assert lines[-1] == "What could be compared agrees; the rest is unknown."
    newest = json.loads(answer_of(*loads.words, *at, "--load", second["load_id"], "--json"))
    assert (newest["verdict"], newest["ok"]) == ("ok", True)


def test_without_a_broker_nothing_is_known(kafka_topic: Topic, tmp_path: Path) -> None:
    loads = Loads(kafka_topic, tmp_path, "parquet")
    nobody = ("-b", "127.0.0.1:1", "--option", "kafka.default.api.timeout.ms=500")
    told = error_of(*loads.words, *nobody, status=3)
    assert told.startswith("pykafka: unknown, nothing could be checked: no broker of bootstrap.servers could be ")
    document = json.loads(verdict_of(*loads.words, *nobody, "--json", status=3))
    assert (document["verdict"], len(document["unread"])) == ("unknown", 1)
