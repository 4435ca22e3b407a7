"""Tokens for Google's Managed Kafka, by google-auth and a metadata server on this machine."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import google.auth.compute_engine._metadata as metadata
import pytest

from broker.errors import AuthenticationFailed, ConfigError
from broker.security.token_providers.google_cloud import PROVIDER
from broker.security.token_source import TokenSource
from tests.support.identity_endpoints import ACCOUNT, IdentityEndpoints


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[IdentityEndpoints]:
    """A machine of Google's, as far as google-auth can tell."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")
    with IdentityEndpoints() as found:
        monkeypatch.setenv("GCE_METADATA_IP", found.address)
        monkeypatch.setattr(metadata, "_GCE_METADATA_HOST", found.address)  # google-auth reads it as it is imported
        yield found


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_token_has_googles_own_form(endpoints: IdentityEndpoints) -> None:
    source = TokenSource(PROVIDER, {})
    header, claims, token = map(decoded, source.token().split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    found = json.loads(claims)
    assert (found["sub"], found["scope"]) == (ACCOUNT, "kafka")
    assert 3590 <= found["exp"] - time.time() <= 3601
    assert token.decode() == endpoints.access_token
    assert source.principal == ACCOUNT
    assert source.token() == source.token()
    assert len(endpoints.requests) == 1


def test_a_server_that_gives_none_is_an_error_that_names_the_provider(endpoints: IdentityEndpoints) -> None:
    source = TokenSource(PROVIDER, {})
    source.token()
    endpoints.status = 403
    source.forget()
    with pytest.raises(AuthenticationFailed, match="sasl.oauthbearer.token.provider=google: "):
        source.token()


def test_an_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="google has no option clientId; it has none"):
        PROVIDER.check({"clientId": "x"}, "")


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(ConfigError, match=r'pip install "pykafka-spark\[gcp\]"'):
        TokenSource(PROVIDER, {}).token()
