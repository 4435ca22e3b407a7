"""Copies topics and the offsets of consumer groups from one cluster to another: `pykafka mirror`."""
