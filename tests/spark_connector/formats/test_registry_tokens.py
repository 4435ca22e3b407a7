"""Logins at a registry with tokens. Confluent's client sends the same headers to the same server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.formats.registries import registry_of
from spark_connector.formats.value_format import RegistrySettings
from spark_connector.options.option_values import OptionValues
from spark_connector.options.registry_options import registry_settings
from spark_connector.registry import rest
from spark_connector.registry.subjects import Schema, Subjects
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider

CLOUD = ("Authorization", "target-sr-cluster", "Confluent-Identity-Pool-Id")
PREFIX = "schema.registry."
OWN = {"bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-2"}


@pytest.fixture(scope="module")
def seen() -> Iterator[list[Any]]:
    """The registry's address, and the headers of CLOUD of each request."""
    found: list[Any] = []

    class Handler(rest.Handler):
        def answered(self, body: bytes) -> tuple[int, Any]:
            found.append(tuple(self.headers.get(name) for name in CLOUD))
            return super().answered(body)

    subjects = Subjects()
    api = rest.Api(subjects, lambda record: subjects.apply(*record))
    api.register("s", Schema('"int"'))
    with rest.serving(api, handler=Handler) as url:
        found.append(url)
        yield found


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


@pytest.fixture
def oidc(provider: IdentityProvider) -> dict[str, str]:
    return {
        **OWN,
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.issuer.endpoint.url": provider.token_url,
        "bearer.auth.client.id": CLIENT_ID,
        "bearer.auth.client.secret": CLIENT_SECRET,
        "bearer.auth.scope": "all",
    }


def settings(url: str, given: dict[str, str], **kafka: str) -> RegistrySettings:
    options = {f"{PREFIX}{name}": text for name, text in {"url": url, **given}.items()}
    more = {f"kafka.{name.replace('_', '.')}": text for name, text in kafka.items()}
    made = registry_settings(OptionValues({**options, **more}), [])
    assert made is not None
    return made


def ours(seen: list[Any], given: dict[str, str], **kafka: str) -> tuple[str | None, ...]:
    """The headers of one request; settings go to executors first."""
    made = settings(seen[0], given, **kafka)
    assert "s3cret" not in repr(made)
    assert registry_of(pickle.loads(pickle.dumps(made))).subject("s").text == '"int"'
    return tuple(seen[-1])


def theirs(seen: list[Any], given: dict[str, str]) -> tuple[str | None, ...]:
    SchemaRegistryClient({"url": seen[0], **given}).get_latest_version("s")
    return tuple(seen[-1])


def test_a_token_that_is_given(seen: list[Any]) -> None:
    given = {**OWN, "bearer.auth.token": "t0ken"}
    found = ours(seen, given)
    assert found == ("Bearer t0ken", "lsrc-1", "pool-2")
    assert found == theirs(seen, {**given, "bearer.auth.credentials.source": "STATIC_TOKEN"})
    assert ours(seen, {"bearer.auth.token": "t0ken"}) == ("Bearer t0ken", None, None)


def test_a_token_of_an_identity_provider_is_asked_for_once(
    seen: list[Any], provider: IdentityProvider, oidc: dict[str, str]
) -> None:
    provider.token_requests.clear()
    found = ours(seen, oidc)
    mine = list(provider.token_requests)
    other = theirs(seen, oidc)
    assert found[1:] == other[1:] == ("lsrc-1", "pool-2")
    assert [str(one[0]).count(".") for one in (found, other)] == [2, 2], "tokens of the provider"
    assert mine == [{"grant_type": "client_credentials", "scope": "all"}] == provider.token_requests[1:]
    assert ours(seen, {**oidc, "bearer.auth.logical.cluster": "lsrc-3"}) == (found[0], "lsrc-3", "pool-2")
    assert len(provider.token_requests) == 2, "the token is that of the process"


def test_the_token_of_the_kafka_client(seen: list[Any], provider: IdentityProvider) -> None:
    jaas = f'o.OAuthBearerLoginModule required clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}";'
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_jaas_config": jaas}
    given = {**OWN, "bearer.auth.credentials.source": "SASL_OAUTHBEARER_INHERIT"}
    kafka = {"bootstrap_servers": "h:1", "sasl_oauthbearer_token_endpoint_url": provider.token_url}
    found = ours(seen, given, **kafka, **login)
    assert str(found[0]).count(".") == 2
    assert found[1:] == ("lsrc-1", "pool-2")
    with pytest.raises(ConfigError, match="INHERIT needs kafka.sasl.mechanism=OAUTHBEARER"):
        settings(seen[0], given, bootstrap_servers="h:1", sasl_mechanism="PLAIN")


def test_a_provider_that_refuses_is_no_bad_record_and_tells_no_secret(seen: list[Any], oidc: dict[str, str]) -> None:
    wrong = settings(seen[0], {**oidc, "bearer.auth.client.secret": "wr0ng"})
    with pytest.raises(ConnectorError, match="SCHEMA_REGISTRY_UNAVAILABLE") as raised:
        registry_of(wrong).subject("s")
    assert "wr0ng" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bearer.auth.credentials.source": "OAUTHBEARER"}, "needs option 'schema.registry.bearer.auth.issuer"),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, "needs option 'schema.registry.bearer.auth.token'"),
        ({"bearer.auth.credentials.source": "SOMEWHERE"}, "must be STATIC_TOKEN or OAUTHBEARER or SASL"),
        ({"bearer.auth.credentials.source": "OAUTHBEARER", "basic.auth.user.info": "a:b"}, "not several"),
    ],
)
def test_sources_that_lack_something_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings("http://r", given)
