"""Tests of broker/records, against Kafka's other Python clients as oracles."""
