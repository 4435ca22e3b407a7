"""Every option of a write with `format("pykafka")`, declared once; the README's second table is made of it.

write_options.py takes names and defaults from here. Names and meaning are those of Spark's own Kafka sink; what
that does not have is marked in the text. `kafka.*` are properties of the producer.
"""

from __future__ import annotations

from spark_connector.options.table import Option

__all__ = ["SPARKS_OWN", "WRITE_OPTIONS"]

WRITE_OPTIONS: tuple[Option, ...] = (
    Option(
        "kafka.bootstrap.servers", None, "both", "required; `host:port` of one or more brokers, to find the others by"
    ),
    Option("topic", None, "both", "topic of all rows; wins over a column `topic`. One of the two must be there"),
    Option(
        "delivery",
        "at-least-once (batch), exactly-once (stream)",
        "both",
        "exactly-once: rows are written in transactions, which readers of committed data see when all tasks have "
        "succeeded; at-least-once: a task or batch that is repeated writes its rows again, as Spark's own sink "
        "does (ours)",
    ),
    Option(
        "transactionalIdPrefix",
        "pykafka-sink",
        "both",
        "begins the transactional ids and the group of an exactly-once write, for brokers that grant rights by "
        "prefix (ours)",
    ),
    Option(
        "txnAppId",
        None,
        "batch",
        "names an exactly-once write, so that one which is repeated writes nothing: inside `foreachBatch` with the "
        "query and the batch, elsewhere, over Spark Connect and from threads of your own with `txnVersion`. Each write "
        "in the function needs a name of its own (ours; Delta calls its options so)",
    ),
    Option(
        "txnVersion",
        None,
        "batch",
        "a number that grows with every write of `txnAppId`, such as the batch's id: the last one or a lower one is "
        "not written again (ours)",
    ),
    Option(
        "includeHeaders",
        None,
        "both",
        "false: leave a column `headers` unwritten; true: it must be there; unset: write it if it is there",
    ),
)

SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options that Spark hands to every sink; they say nothing about this one."""
