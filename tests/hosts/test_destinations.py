"""A local path as destination, with executors on other hosts: nothing is lost in silence, and what is said is plain.

One session on a driver's host plays all destinations; each is a test of what it saw. `shared_mount=True` is a false
claim here: so the load comes to the check before its commit. The hosts are started once: a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hosts import HOME, Network, start_broker, start_master, start_worker, start_zookeeper
from tests.support.requirements import Unavailable, give_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

JSON = {"valueFormat": "json", "valueSchema": "n INT"}
BY_TASKS = {"minPartitions": "2"}
FORMATS = ("parquet", "json", "orc", "avro", "delta", "iceberg", "sql")
LAKES = ("delta", "iceberg")
TRAPS = (*FORMATS, *(f"upsert {lake}" for lake in LAKES), *(f"dead letters {lake}" for lake in LAKES))
SHARED = "an object store (s3://, gs://, abfss://), hdfs://, or a network file system"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    try:
        with Network(tmp_path_factory.mktemp("network")) as network:
            yield network
    except Unavailable as missing:
        give_up(str(missing))


@pytest.fixture(scope="module")
def seen(network: Network) -> Any:
    """What one session saw of each destination: see `play`."""
    start_broker(network.host("kafka"), 1, start_zookeeper(network.host("kafka")))
    master = start_master(network.host("master"))
    for name in ("w1", "w2"):
        start_worker(network.host(name), master)
    return network.host("driver").call("tests.hosts.test_destinations:play", master, "kafka:9092", timeout=1700)


@pytest.mark.parametrize("trap", TRAPS)
def test_a_local_path_is_refused_before_anything_is_written(seen: Any, trap: str) -> None:
    text, files = seen["refused"][trap]
    assert "is a local path, and another place on each host: the driver runs on host driver" in text
    assert SHARED in text
    assert files == []


@pytest.mark.parametrize("trap", TRAPS)
def test_a_mount_that_is_not_shared_is_found_before_the_commit(seen: Any, network: Network, trap: str) -> None:
    """The load fails, names the hosts and what the tasks have left there; the offsets stay where they were."""
    text, committed = seen["claimed"][trap]
    assert committed == 0
    assert SHARED in text, text
    assert "on hosts w1 and w2" in text or "on host w1" in text or "on host w2" in text, text
    if trap != "sql":
        left = text.partition("The files of this try are left in ")[2].partition(" on ")[0].removeprefix("file://")
        assert left.startswith(str(HOME))
        there = [name for name in ("w1", "w2") if network.host(name).outside(left).exists()]
        assert there
        assert all(name in text for name in there)


def test_the_driver_compacts_and_upserts_by_itself(seen: Any) -> None:
    assert seen["by the driver"] == {"compacted": [2, 1], "upserted": 1}


@pytest.mark.parametrize("format", ["parquet", *LAKES])
def test_a_history_that_executors_do_not_have(seen: Any, format: str) -> None:
    assert "a file of it is not on host w" in seen["history"][format]
    assert "the query was planned on host driver" in seen["history"][format]
    assert SHARED in seen["history"][format]


def test_offset_stores_and_checkpoints_are_the_drivers(seen: Any) -> None:
    assert seen["offsets"] == {"streamed": 3000, "stored": 3000, "rows after": 0, "checkpoint": True}


def play(master: str, bootstrap: str) -> dict[str, Any]:
    """On the driver's host: all of it in one session. A text is what a load or query said."""
    from pyspark.sql import SparkSession

    from tests.support.table_harness import add_catalog

    catalog = add_catalog(HOME / "catalog")  # before Spark, whose workers have its environment
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    builder = builder.config("spark.executor.memory", "512m").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0").getOrCreate()
    session = _Session(spark, bootstrap, catalog)
    seen: dict[str, Any] = {"refused": {}, "claimed": {}, "history": {}}
    for trap in TRAPS:
        seen["refused"][trap] = session.refused(trap)
        seen["claimed"][trap] = session.claimed(trap)
    seen["by the driver"] = session.by_the_driver()
    for format in ("parquet", *LAKES):
        seen["history"][format] = session.history(format)
    seen["offsets"] = session.offsets()
    return seen


class _Session:
    def __init__(self, spark: Any, bootstrap: str, catalog: str) -> None:
        from tests.support.topics import Topic

        self.spark, self.bootstrap, self.catalog = spark, bootstrap, catalog
        topic = Topic(bootstrap, "t", 4)
        for partition in range(4):
            topic.produce([b'{"n": %d}' % n for n in range(750)], partition, key=b"k")
        Topic(bootstrap, "bad", 2).produce([b"no json"] * 2000)
        self.small = Topic(bootstrap, "small")
        self.small.produce([b'{"n": 1}'], key=b"k")
        Topic(bootstrap, "out", 2)

    def load(self, trap: str, name: str, **given: Any) -> Any:
        from spark_connector.load import load

        kind, _, lake = trap.partition(" ")
        letters = trap.startswith("dead letters")
        format = "parquet" if letters else lake or kind
        to = {"iceberg": f"iceberg:lake.{name}", "sql": f"sqlite:///{HOME}/{name}.db#t"}.get(format, f"{HOME}/{name}")
        catalog = self.catalog if format == "iceberg" else None
        if kind == "upsert":
            given |= {"mode": "upsert", "key": "n", "order_by": "timestamp"}
        if letters:
            place = f"iceberg:{self.catalog}/lake.bad_{name}" if "iceberg" in trap else f"delta:{HOME}/bad_{name}"
            given |= {"dead_letters": place, "topic": "bad"}
        options = JSON | given.pop("options", BY_TASKS)
        arguments: dict[str, Any] = {"topic": "t", "publish_offsets": False, "options": options, **given}
        where: dict[str, Any] = {"to": to, "format": format, "catalog": catalog, "group": "g"}
        return load(self.spark, bootstrap_servers=self.bootstrap, **where, **arguments)

    def refused(self, trap: str) -> list[Any]:
        """(what was said, the files that are there)."""
        name = "r_" + trap.replace(" ", "_")
        text = said(lambda: self.load(trap, name))
        return [text, [str(path) for path in HOME.glob(f"{name}/**/*") if path.is_file()]]

    def claimed(self, trap: str) -> list[Any]:
        """(what was said, the offsets that the group has then)."""
        from spark_connector.destinations import open_destination
        from spark_connector.loads.request import Target

        name = "c_" + trap.replace(" ", "_")
        text = said(lambda: self.load(trap, name, shared_mount=True))
        format = "parquet" if trap.startswith("dead") else trap.rpartition(" ")[2]
        to = {"iceberg": f"iceberg:lake.{name}", "sql": f"sqlite:///{HOME}/{name}.db#t"}.get(format, f"{HOME}/{name}")
        target = Target(to, "g", format=format, catalog=self.catalog if format == "iceberg" else None)
        with open_destination(target.check()) as destination:
            return [text, sum(destination.log.offsets().values())]

    def by_the_driver(self) -> dict[str, Any]:
        from spark_connector.loads.request import Target
        from spark_connector.maintenance import compact

        few = {"topic": "small", "shared_mount": True, "options": {}}
        self.load("delta", "small", **few)
        self.small.produce([b'{"n": 2}'], key=b"l")
        self.load("delta", "small", **few)
        done = compact(Target(f"{HOME}/small", "g", format="delta"), rewindable="0")
        upserted = self.load("upsert delta", "small_upsert", **few)
        return {"compacted": [done.files_before, done.files_after], "upserted": 1 if upserted.rows else 0}

    def history(self, format: str) -> str:
        self.load(format, f"h_{format}", topic="small", shared_mount=True, options={})
        place = {"delta": f"delta:{HOME}/h_delta", "iceberg": "iceberg:lake.h_iceberg"}.get(
            format, f"{HOME}/h_{format}"
        )
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": "small", "history": place, "group": "g"}
        if format == "iceberg":
            options["catalog"] = self.catalog
        return said(lambda: self.spark.read.format("pykafka").options(**options).load().collect())

    def offsets(self) -> dict[str, Any]:
        from tests.support.all_available import take_all

        store = {"offsetStore": "files", "offsetStore.path": f"{HOME}/offsets", "group": "s"}
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": "t", **store}
        source = self.spark.readStream.format("pykafka").options(**options, startingOffsets="earliest").load()
        writer = source.select("value").writeStream.format("pykafka")
        given = {"kafka.bootstrap.servers": self.bootstrap, "topic": "out", "checkpointLocation": f"{HOME}/checkpoint"}
        query = take_all(writer.options(**given))
        streamed = sum(progress.numInputRows for progress in query.recentProgress)
        rest = self.spark.read.format("pykafka").options(**options, startingOffsets="committed").load().count()
        out = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": "out"}
        stored = self.spark.read.format("pykafka").options(**out).load().count()
        there = (HOME / "checkpoint" / "commits").is_dir()
        return {"streamed": streamed, "stored": stored, "rows after": rest, "checkpoint": there}


def said(act: Any) -> str:
    """The error's text; what was done, if there was none."""
    try:
        done = act()
    except Exception as error:
        return f"{error}"
    return f"no error: {done}"
