"""What Spark's progress reports say about lag, and where it is shown. Used by listener.py; knows no pyspark."""
