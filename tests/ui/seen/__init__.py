"""Tests of `pykafka_ui.seen`."""
