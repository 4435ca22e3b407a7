"""The options that say what a schema registry is, and where."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from spark_connector.formats.value_format import RegistrySettings, SchemaSubject
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.write_options import parse_write_options

READ = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "valueFormat": "avro"}
WRITE = {"kafka.bootstrap.servers": "h:1", "topic": "t", "valueFormat": "avro"}
TYPE, URL, GROUP = "schema.registry.type", "schema.registry.url", "schema.registry.group"


def registry(**given: str) -> RegistrySettings | None:
    """Of a read, which is that of a write with the same options."""
    options = {f"schema.registry.{name.replace('_', '.')}": text for name, text in given.items()}
    formats = parse_options({**READ, **options}, Mode.BATCH).formats
    assert formats.value.schema == SchemaSubject()
    assert parse_write_options({**WRITE, **options}, stream=False).formats.registry == formats.registry
    return formats.registry


def test_glue_needs_no_url() -> None:
    assert registry(type="Glue") == RegistrySettings((), type="glue")
    found = registry(type="glue", url="https://vpce.x", group="orders", region="eu-west-1", profile="etl")
    assert found == RegistrySettings(
        ("https://vpce.x",), type="glue", group="orders", region="eu-west-1", profile="etl"
    )


def test_what_apicurios_values_begin_with() -> None:
    url = "http://r:8080/apis/registry/v3"
    assert registry(type="apicurio", url=url) == RegistrySettings((url,), type="apicurio")
    found = registry(type="apicurio", url=url, use_id="globalId", id_bytes="8")
    assert found == RegistrySettings((url,), type="apicurio", use_id="globalid", id_bytes=8)


def test_azures_tokens_are_those_of_each_process() -> None:
    found = registry(type="azure", url="https://n.servicebus.windows.net", group="shop")
    assert found is not None
    assert found.tokens == ("azure", (("azure.scope", "https://eventhubs.azure.net/.default"),))
    given = registry(type="azure", url="https://n.servicebus.windows.net", group="shop", bearer_auth_token="t")
    assert given is not None
    assert (given.tokens, given.bearer_token) == (None, "t")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({TYPE: "karapace", URL: "http://r"}, "must be confluent or glue or apicurio or azure, not 'karapace'"),
        ({TYPE: "apicurio"}, f"'{TYPE}'=apicurio needs option '{URL}'"),
        ({TYPE: "azure", URL: "http://r"}, f"needs option '{GROUP}'"),
        ({URL: "http://r", GROUP: "g"}, f"'{GROUP}' has no effect: it needs '{TYPE}' to be glue, apicurio or azure"),
        ({TYPE: "glue", "schema.registry.use.id": "globalId"}, f"it needs '{TYPE}' to be apicurio"),
        ({TYPE: "apicurio", URL: "http://r", "schema.registry.id.bytes": "5"}, "must be 4 or 8, not '5'"),
        ({URL: "http://r", "schema.registry.bearer.auth.client.id": "c"}, "has no effect: it needs"),
        ({URL: "http://r", "schema.registry.bearer.auth.logical.cluster": "c"}, "has no effect: it needs"),
        ({TYPE: "glue", "valueFormat": "string"}, "has no effect"),
    ],
)
def test_options_without_effect_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_options({**READ, **given}, Mode.BATCH)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schemaIdLocation": "header", "valueSchema": '"int"'}, "'schemaIdLocation' has no effect"),
        ({"schemaIdLocation": "key", URL: "http://r"}, "must be value or header"),
        ({"schemaIdLocation": "header", URL: "http://r", "includeHeaders": "false"}, "writes no headers"),
        ({TYPE: "azure", GROUP: "g", URL: "http://r", "includeHeaders": "false"}, "writes no headers"),
    ],
)
def test_headers_that_are_not_written_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_write_options({**WRITE, **given}, stream=False)
