"""Tests of `pykafka_ui.records`."""
