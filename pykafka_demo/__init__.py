"""`pykafka demo`: real flight records through the broker into Spark, killed on the way, and proven whole."""
