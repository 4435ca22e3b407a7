"""The console: one file per command of `pykafka`."""
