"""The direct road of loads: tasks that fetch, decode and write parquet themselves."""
