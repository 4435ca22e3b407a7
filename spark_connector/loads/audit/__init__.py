"""Recounting loads against Kafka's log."""
