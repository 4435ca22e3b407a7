"""Tokens of Entra ID for Event Hubs, by azure-identity and an endpoint of managed identities on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from broker.errors import AuthenticationFailed, ConfigError
from broker.security.token_providers.azure import PROVIDER
from broker.security.token_source import TokenSource
from tests.support.identity_endpoints import IdentityEndpoints
from tests.support.identity_provider import claims, signed

HOST = "flights.servicebus.windows.net"


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> Iterator[IdentityEndpoints]:
    """A machine of Azure's with a managed identity, as far as azure-identity can tell."""
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with IdentityEndpoints() as found:
        found.access_token = signed(claims("x", aud=f"https://{HOST}", appid="the-app"))
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://{found.address}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "header-s3cret")
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        yield found


def test_a_token_is_for_the_namespace_of_the_broker(endpoints: IdentityEndpoints) -> None:
    source = TokenSource(PROVIDER, {}, HOST)
    assert source.token() == endpoints.access_token
    ((_, asked),) = endpoints.requests
    assert asked["resource"] == f"https://{HOST}"
    assert source.principal == "the-app"
    assert source.holds


def test_scope_and_identity_may_be_set(endpoints: IdentityEndpoints) -> None:
    options = {"azure.scope": "https://eventhubs.azure.net/.default", "azure.client.id": "1-2"}
    PROVIDER.check(options, HOST)
    TokenSource(PROVIDER, options, "10.0.0.4").token()
    ((_, asked),) = endpoints.requests
    assert (asked["resource"], asked["client_id"]) == ("https://eventhubs.azure.net", "1-2")


def test_an_endpoint_that_gives_none_is_an_error_that_names_the_provider(endpoints: IdentityEndpoints) -> None:
    endpoints.status = 400
    with pytest.raises(AuthenticationFailed, match="sasl.oauthbearer.token.provider=azure: .*invalid_scope"):
        TokenSource(PROVIDER, {}, HOST).token()


def test_an_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="azure has no option azure.tenant; it has azure.scope, azure.client.id"):
        PROVIDER.check({"azure.tenant": "x"}, "")


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(ConfigError, match=r'pip install "pykafka-spark\[azure\]"'):
        TokenSource(PROVIDER, {}).token()
