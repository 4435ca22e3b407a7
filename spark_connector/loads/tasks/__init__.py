"""Loads whose tasks write the files themselves: what they fetch becomes parquet by Arrow, without Spark's JVM."""
