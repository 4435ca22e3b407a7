"""Tests of `pykafka_ui.pages`."""
