"""Kafka's messages: kio behind one door, and the response encoders that are written by hand."""
