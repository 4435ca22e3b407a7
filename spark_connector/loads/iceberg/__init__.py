"""Loads into an Apache Iceberg table: rows, offsets and the load's number are one commit of the table."""
