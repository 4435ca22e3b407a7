"""Kafka's messages: kio behind messages.py, and the encoders that are written by hand."""
