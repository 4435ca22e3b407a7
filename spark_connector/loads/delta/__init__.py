"""Loads into a Delta table: rows, offsets and the load's number are one commit of the table."""
