"""Tests of pykafka_demo."""
