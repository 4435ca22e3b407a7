"""The Spark connector: `format("pykafka")` for batch and stream reads, offset stores, exactly-once loads."""
