"""Run as a program: reads and writes topics over Spark Connect, batch and stream, and prints what it saw as JSON.

A process of its own, since one process cannot hold a classic session and a Connect session.
Arguments: bootstrap servers, a topic to read, one to write to, an empty directory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_connector.progress.stream_lag import QueryLag

SECRET = "registry-s3cret"

_PATIENCE_S = 270


def main(bootstrap: str, topic: str, target: str, directory: str) -> None:
    faulthandler.dump_traceback_later(_PATIENCE_S, exit=True)  # say where it hangs, while somebody listens
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    from spark_connector.listener import LagListener
    from tests.support.all_available import take_all
    from tests.support.free_ports import free_ports
    from tests.support.waiting import eventually

    [port] = free_ports(1)
    # A local session takes no other port than 15002 from its user, and two at a time would collide.
    DefaultChannelBuilder.default_port = staticmethod(lambda: port)  # type: ignore[method-assign]
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.connect.grpc.binding.port", str(port))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("pykafka").options(**options).load()
    number = F.col("value").cast("string").cast("int")
    row = batch.agg(F.count("*").alias("rows"), F.sum(number).alias("sum")).collect()[0]
    told = Told()
    listener = LagListener(told)
    spark.streams.addListener(listener)
    stream = spark.readStream.format("pykafka").options(**options, maxOffsetsPerTrigger="75").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
    take_all(writer, f"{directory}/output")
    eventually(lambda: bool(told.runs), 60)  # Spark hangs if it has an event left when the listener goes (SPARK-59623)
    spark.streams.removeListener(listener)
    streamed = spark.read.parquet(f"{directory}/output").count()
    try:
        spark.read.format("pykafka").options(**options, subscrib="t").load().count()
        error = ""
    except Exception as raised:  # whatever Connect makes of it
        error = str(raised)
    seen = {"rows": row["rows"], "sum": row["sum"], "streamed": streamed, "behind": told.behind}
    refused = write_in_foreach_batch(spark, options, target, f"{directory}/foreach")
    copied = copy_and_read_typed(spark, options, target, f"{directory}/sink")
    loaded = load_every_way(spark, options, f"{directory}/loads")
    print(
        json.dumps(
            {**seen, "error": error, "refused": refused, **copied, "loaded": loaded, "plans": plans(spark, options)}
        )
    )
    spark.stop()


def load_every_way(spark: SparkSession, options: dict[str, str], directory: str) -> dict[str, Any]:
    """A load of the topic by each writer, and what recounting it says. JSON and ORC have that of Parquet: Spark's."""
    from spark_connector.load import load
    from spark_connector.loads.request import Target
    from spark_connector.maintenance import verify

    servers, found = options["kafka.bootstrap.servers"], {}
    layouts = {"parquet": "date,topic", "delta": "hour", "avro": "topic"}
    for format in ("parquet", "avro", "delta", "sql"):
        to = f"sqlite:///{directory}.db#flights" if format == "sql" else f"{directory}/{format}"
        target = Target(to, f"connect-{format}", format=format)
        result = load(
            spark,
            bootstrap_servers=servers,
            topic=options["subscribe"],
            to=to,
            group=target.group,
            format=format,
            partition_by=layouts.get(format),
            options={"minPartitions": "2"},  # so that tasks load, not the driver
        )
        checked = verify(target, servers)
        found[format] = result.rows if checked.ok else str(checked)
    return found


class Told:
    """What a listener is told: offsets behind after each batch, and the runs that are over."""

    def __init__(self) -> None:
        self.behind: list[float] = []
        self.runs: list[str] = []

    def progressed(self, lag: QueryLag) -> None:
        self.behind.append(lag.sources[0].metrics()["maxOffsetsBehindLatest"])

    def ended(self, run_id: str) -> None:
        self.runs.append(run_id)


def write_in_foreach_batch(spark: SparkSession, options: dict[str, str], target: str, directory: str) -> list[str]:
    """Write what is in the topic to `target`, twice, inside foreachBatch; what was refused there before."""
    import pyspark

    from tests.support.all_available import take_all

    to = {"kafka.bootstrap.servers": options["kafka.bootstrap.servers"], "topic": target, "delivery": "exactly-once"}
    notes = Path(directory, "refused.json")

    def write(batch: DataFrame, number: int) -> None:
        as_json = "to_json(struct(CAST(CAST(value AS STRING) AS BIGINT) AS id, 'foreach' AS how)) AS value"
        rows, refused = batch.selectExpr(as_json), []
        named = {"txnAppId": "foreach"}
        for names in [named] if pyspark.__version__ < "4.3" else [{}, named]:  # before it nothing tells the query
            try:
                rows.write.format("pykafka").options(**to, **names).mode("append").save()
            except Exception as error:  # whatever Connect makes of it
                refused.append(str(error))
        for _ in range(2):
            versioned = {**named, "txnVersion": str(number)}
            rows.write.format("pykafka").options(**to, **versioned).mode("append").save()
        notes.write_text(json.dumps(refused))

    stream = spark.readStream.format("pykafka").options(**options).load()
    take_all(stream.writeStream.foreachBatch(write).option("checkpointLocation", directory))
    return list(json.loads(notes.read_text()))


def copy_and_read_typed(spark: SparkSession, options: dict[str, str], target: str, checkpoint: str) -> dict[str, Any]:
    """Write typed columns, a batch and an exactly-once stream of JSON, to `target`; what a typed read of it finds."""
    from tests.support.all_available import take_all

    to = {"kafka.bootstrap.servers": options["kafka.bootstrap.servers"], "topic": target, "valueFormat": "json"}
    rows = spark.range(1000, 1005).selectExpr("id", "'batch' AS how")
    rows.write.format("pykafka").options(**to).mode("append").save()
    stream = spark.readStream.format("pykafka").options(**options).load()
    rows = stream.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS id", "'stream' AS how")
    writer = rows.writeStream.format("pykafka").options(**to, delivery="exactly-once")
    take_all(writer.option("checkpointLocation", checkpoint))
    typed = {**options, "subscribe": target, "valueFormat": "json", "valueSchema": "id BIGINT, how STRING"}
    back = spark.read.format("pykafka").options(**typed).load()
    sums = back.select("value.*").groupBy("how").sum("id").collect()
    return {"sums": {row[0]: row[1] for row in sums}, "type": back.schema["value"].simpleString()}


def plans(spark: SparkSession, options: dict[str, str]) -> str:
    """What explain() shows of reads that log in to a schema registry: by its URL, and hidden as README says."""
    schema = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    avro = {**options, "valueFormat": "avro", "valueSchema": schema}
    by_url = {**avro, "schema.registry.url": f"http://me:{SECRET}@127.0.0.1:1"}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        _explain(spark, by_url)
        spark.conf.set("spark.sql.redaction.options.regex", "(?i)url|user[.]info")
        apart = {"schema.registry.url": "http://127.0.0.1:1", "schema.registry.basic.auth.user.info": f"me:{SECRET}"}
        _explain(spark, {**avro, **apart})
    return shown.getvalue()


def _explain(spark: SparkSession, options: dict[str, str]) -> None:
    for reader in (spark.read, spark.readStream):
        frame = reader.format("pykafka").options(**options).load()
        frame.explain(True)
        frame.explain("formatted")
        print(repr(frame))


if __name__ == "__main__":
    main(*sys.argv[1:])
