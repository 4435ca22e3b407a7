"""The console commands that pyproject.toml hands to `pykafka`."""
