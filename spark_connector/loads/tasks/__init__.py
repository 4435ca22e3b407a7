"""The road of a load's rows: tasks that fetch, decode and write them, into files or a database."""
