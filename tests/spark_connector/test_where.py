"""`where` against Spark's own: 200 random conjunctions let the same rows pass, and less is read for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr, struct

from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import KafkaBatchReader
from tests.support.kafka import Kafka
from tests.support.randomness import seeded
from tests.support.topics import Topic

CONJUNCTIONS = 200
PARTITIONS = 4
NOON = 1_795_600_800_000
KEYS = [None, b"", b"a", b"ab", b"abc", b"user-1", b"user-2", "ä%_".encode(), b"it", b"\xff\x00"]
OPERATORS = ("=", "==", "<>", "!=", "<", "<=", ">", ">=")
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

Term = tuple[str, str]
"""As the option takes it, and as Spark does."""


def fill(topic: Topic) -> int:
    """Records with few different keys, in the partitions of their keys, with times a second apart that go back."""
    chance = seeded(33)
    producer = Producer({"bootstrap.servers": topic.bootstrap, "partitioner": "murmur2_random"})
    for number in range(300):
        time = NOON + 1000 * (number + chance.randrange(-20, 20)) + chance.choice([0, 0, 1, 999])
        producer.produce(topic.name, b"%d" % number, chance.choice(KEYS), timestamp=time)
    assert producer.flush(60) == 0
    return 300


def number(chance: random.Random) -> Term:
    column = chance.choice(["partition", "offset", "`offset`", "Offset"])
    most = PARTITIONS if column == "partition" else 120
    return comparison(chance, column, lambda: (text := str(chance.randrange(-1, most)), text))


def moment(chance: random.Random) -> Term:
    def constant() -> Term:
        us = NOON * 1000 + chance.randrange(-30_000_000, 330_000_000)
        if (kind := chance.randrange(3)) == 0:
            return str(us // 1000), f"timestamp_millis({us // 1000})"
        us = us // 1000 * 1000 if kind == 1 else us
        zone = timezone(timedelta(minutes=chance.choice([0, 60, -210, 345])))
        written = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).astimezone(zone)
        text = f"'{written.isoformat(chance.choice(' T'))}'"
        text = text.replace("+00:00", chance.choice(["Z", "+00:00"]))
        return (f"TIMESTAMP {text}",) * 2 if chance.random() < 0.3 else (text, text)

    return comparison(chance, "timestamp", constant)


def comparison(chance: random.Random, column: str, constant: Callable[[], Term]) -> Term:
    kind = chance.randrange(5)
    if kind == 0:
        (low, low2), (high, high2) = constant(), constant()
        return f"{column} BETWEEN {low} AND {high}", f"{column} BETWEEN {low2} AND {high2}"
    if kind == 1:
        several = [constant() for _ in range(chance.randrange(1, 4))]
        ours, sparks = (", ".join(texts) for texts in zip(*several, strict=True))
        return f"{column} in ({ours})", f"{column} in ({sparks})"
    operator, (mine, sparks) = chance.choice(OPERATORS), constant()
    if kind == 2:
        flipped = FLIPPED.get(operator, operator)
        return f"{mine} {flipped} {column}", f"{sparks} {flipped} {column}"
    return f"{column}{operator}{mine}", f"{column}{operator}{sparks}"


def key(chance: random.Random) -> Term:
    def constant() -> str:
        found = chance.choice(KEYS[1:])
        if found is None or found == b"\xff\x00" or chance.random() < 0.3:
            return f"X'{(found or b'').hex()}'"
        return f"'{found.decode()}'"

    kind = chance.randrange(4)
    if kind == 0:
        text = f"key LIKE '{chance.choice(['a%', 'ab%', 'user-%', '%', 'ab', 'x%'])}'"
    elif kind == 1:
        text = f"key IN ({', '.join(constant() for _ in range(chance.randrange(1, 6)))})"
    else:
        text = f"key {chance.choice(['=', '==', '<>', '!='])} {constant()}"
    return text, text


def conjunction(chance: random.Random) -> Term:
    terms = [chance.choice([number, moment, key, key])(chance) for _ in range(chance.randrange(1, 4))]
    ours, sparks = (chance.choice([" AND ", " and "]).join(texts) for texts in zip(*terms, strict=True))
    return (f"({ours})", sparks) if chance.random() < 0.1 else (ours, sparks)


def test_the_same_rows_pass_as_sparks_own_where_lets_pass(spark: SparkSession, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, PARTITIONS)
    count = fill(made)
    chance = seeded(5)
    terms = [conjunction(chance) for _ in range(CONJUNCTIONS)]
    given = {"kafka.bootstrap.servers": made.bootstrap, "subscribe": topic, "columns": "partition,offset"}
    frame = spark.read.format("pykafka").options(**{**given, "columns": "key,partition,offset,timestamp"}).load()
    passing = struct(*(expr(sparks).alias(str(n)) for n, (_, sparks) in enumerate(terms)))
    rows = frame.select("partition", "offset", passing.alias("passing")).collect()
    assert len(rows) == count
    ranges, found_some = 0, 0
    for place, (ours, _) in enumerate(terms):
        expected = sorted((row.partition, row.offset) for row in rows if row.passing[place])
        for more in ({}, {"filterKeyPartitioner": "murmur2"}) if " key = '" in f" {ours}" else ({},):
            reader = KafkaBatchReader(parse_options({**given, "where": ours, **more}, Mode.BATCH))
            tasks = reader.partitions()
            batches = [batch for task in tasks for batch in reader.read(task)]
            found = sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())
            assert found == expected, (ours, more)
            ranges += len(tasks)
        found_some += bool(expected)
    assert found_some > CONJUNCTIONS / 3, "most conjunctions let something pass"
    assert ranges < PARTITIONS * CONJUNCTIONS, "less is read"


def test_a_view_in_sql_has_the_condition_as_an_option(spark: SparkSession, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, PARTITIONS)
    fill(made)
    spark.sql(
        f"""
        CREATE OR REPLACE TEMPORARY VIEW pykafka_where USING pykafka OPTIONS (
            kafka.bootstrap.servers '{made.bootstrap}', subscribe '{topic}', filterKeyPartitioner 'murmur2',
            where "timestamp >= '2026-11-25T10:01:00Z' AND key = 'user-1'")
        """
    )
    both = "timestamp >= '2026-11-25T10:01:00Z' AND key = 'user-1'"
    every = spark.read.format("pykafka").options(**{"kafka.bootstrap.servers": made.bootstrap, "subscribe": topic})
    expected = every.load().where(both).select("partition", "offset").collect()
    found = spark.sql("SELECT partition, offset FROM pykafka_where").collect()
    assert sorted(found) == sorted(expected)
    assert expected
    spark.catalog.dropTempView("pykafka_where")
