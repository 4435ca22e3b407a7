"""Loads into a table of a database: rows, offsets and the load's number are one transaction."""
