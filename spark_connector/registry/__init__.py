"""A schema registry for tests and notebooks: Confluent's REST API over the broker's topic `_schemas`."""
