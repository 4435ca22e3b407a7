"""The sink: rows of a DataFrame to records in Kafka's log, at least or exactly once."""
