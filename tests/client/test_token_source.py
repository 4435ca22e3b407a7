"""Where our client gets its tokens: an endpoint, a file, or itself; how often it asks, and what it says of failures."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.client_settings import ClientSettings
from broker.clock import ManualClock
from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed
from broker.security.access_token import read_unsigned
from broker.security.oauthbearer import ClientFirst, TokenLogin
from broker.security.token_providers.file import URL
from broker.security.token_providers.provider_table import find_provider, usual_provider
from broker.security.token_source import TokenSource
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, by_hand, claims, signed
from tests.support.secured import Certificates

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
CREDENTIALS = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET}


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as found:
        yield found


def source_of(properties: dict[str, str]) -> TokenSource:
    found = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **properties}
    login = ClientSettings.from_properties(found).login()
    assert isinstance(login, TokenLogin)
    return login.tokens


def token_source(url: str, options: dict[str, str], clock: ManualClock | None = None) -> TokenSource:
    """One that no other test shares."""
    asked = {**options, URL: url}
    return TokenSource(find_provider(usual_provider(asked)), asked, clock=clock)


class TestAnEndpoint:
    def spellings(self, url: str) -> list[dict[str, str]]:
        java = f'{MODULE} clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="a b";'
        return [
            {"sasl.jaas.config": java},
            {
                "sasl.jaas.config": java.replace(CLIENT_SECRET, "other"),
                "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
                "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.secured."
                "OAuthBearerLoginCallbackHandler",
            },
            {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": CLIENT_ID,
                "sasl.oauthbearer.client.secret": CLIENT_SECRET,
                "sasl.oauthbearer.scope": "a b",
            },
        ]

    def test_is_asked_with_every_spelling_of_the_credentials(self, provider: IdentityProvider) -> None:
        for properties in self.spellings(provider.token_url):
            source = source_of({**properties, "sasl.oauthbearer.token.endpoint.url": provider.token_url})
            assert source.token().count(".") == 2
            source.forget()  # which the other spellings share
        assert provider.token_requests == [{"grant_type": "client_credentials", "scope": "a b"}] * 3

    def test_may_get_the_credentials_encoded(self, provider: IdentityProvider) -> None:
        options = {"clientId": "loader", "clientSecret": "loader-s3cret"}
        encoded = {**options, "sasl.oauthbearer.header.urlencode": "true"}
        assert token_source(provider.token_url, encoded).token()
        with pytest.raises(AuthenticationFailed):
            token_source(provider.token_url, {**encoded, "clientSecret": "a:b/ä"}).token()

    def test_is_asked_again_when_four_fifths_of_a_token_are_over(self, provider: IdentityProvider) -> None:
        clock = ManualClock(time.time_ns() // 1_000_000)
        provider.lifetime_s = 1000
        source = token_source(provider.token_url, CREDENTIALS, clock=clock)
        first = source.token()
        clock.advance(790_000)
        assert source.token() == first
        clock.advance(20_000)
        source.token()
        assert len(provider.token_requests) == 2
        source.forget()
        source.token()
        assert len(provider.token_requests) == 3

    def test_that_is_away_leaves_the_token_that_still_holds(self, provider: IdentityProvider) -> None:
        clock = ManualClock(time.time_ns() // 1_000_000)
        provider.lifetime_s = 1000
        source = token_source(provider.token_url, CREDENTIALS, clock=clock)
        first = source.token()
        provider.status = 503
        clock.advance(900_000)
        for _ in range(3):
            assert source.token() == first
        assert len(provider.token_requests) == 2, "it is not asked at each login"
        clock.advance(200_000)
        with pytest.raises(
            ConnectionFailed,
            match=r"no access token: sasl.oauthbearer.token.provider=oidc: http://127.0.0.1:\d+/token: HTTP 503$",
        ):
            source.token()

    def test_that_cannot_be_reached_may_be_tried_again(self, provider: IdentityProvider) -> None:
        source = token_source(provider.token_url, CREDENTIALS)
        provider.__exit__()
        with pytest.raises(ConnectionFailed, match="Connection refused"):
            source.token()
        provider.__enter__()
        assert source.token()

    def test_is_asked_over_tls_if_it_is_trusted(self, tmp_path: Path) -> None:
        files = Certificates.make(tmp_path)
        with IdentityProvider(files.server) as provider:
            own = {**CREDENTIALS, "ssl.truststore.location": str(files.ca), "ssl.protocol": "SSL"}
            assert token_source(provider.token_url, own).token()
            with pytest.raises(ConnectionFailed, match="certificate verify failed"):
                token_source(provider.token_url, CREDENTIALS).token()
        assert len(provider.token_requests) == 1

    def test_that_refuses_the_credentials_is_not_tried_again(self, provider: IdentityProvider) -> None:
        source = token_source(provider.token_url, {**CREDENTIALS, "clientSecret": "wrong-s3cret"})
        with pytest.raises(AuthenticationFailed, match=r"HTTP 401 \(invalid_client\)$") as caught:
            source.token()
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"access_token": 1}', b'{"access_token": " "}', b"\xff"])
    def test_that_gives_no_token_is_not_tried_again(
        self, provider: IdentityProvider, answer: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(provider, "_token_answer", lambda request: (200, answer))
        with pytest.raises(AuthenticationFailed, match="there is no access_token in the answer"):
            token_source(provider.token_url, CREDENTIALS).token()

    @pytest.mark.parametrize(
        ("expires_in", "requests"), [(b"1000", 1), (b"0", 2), (b"-1", 2), (b"null", 2), (b"1e400", 2)]
    )
    def test_may_give_a_token_that_only_the_broker_can_read(
        self, provider: IdentityProvider, expires_in: bytes, requests: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []
        answer = b'{"access_token": "opaque", "expires_in": %s}' % expires_in

        def give(request: Any) -> tuple[int, bytes]:
            asked.append(request)
            return 200, answer

        monkeypatch.setattr(provider, "_token_answer", give)
        source = token_source(provider.token_url, CREDENTIALS)
        assert [source.token(), source.token()] == ["opaque", "opaque"]
        assert len(asked) == requests


@pytest.mark.parametrize(
    "spelling",
    [
        {"sasl.jaas.config": f'{MODULE} extension_logicalCluster="lkc-1" extension_identityPoolId="pool-1";'},
        {"sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1"},
        {
            "sasl.jaas.config": f'{MODULE} extension_logicalCluster="lkc-0" extension_identityPoolId="pool-1";',
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
        },
    ],
)
def test_the_extensions_of_confluent_cloud_are_sent_beside_the_token(spelling: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opaque")
    found = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", URL: (tmp_path / "token").as_uri()}
    login = ClientSettings.from_properties({**found, **spelling}).login()
    assert isinstance(login, TokenLogin)
    sent = ClientFirst.parse(next(login.begin("h")))  # as a broker reads it
    assert (sent.token, sent.extensions) == ("opaque", {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"})


class TestAFile:
    def test_is_read_again_for_a_new_token(self, tmp_path: Path) -> None:
        clock = ManualClock()
        file = tmp_path / "a token"
        source = token_source(file.as_uri(), {}, clock=clock)
        with pytest.raises(ConnectionFailed, match="No such file"):
            source.token()
        file.write_text("\n")
        with pytest.raises(ConnectionFailed, match="there is no token in it"):
            source.token()
        for subject in ("ann", "bob"):
            token = signed(claims(subject, 60, clock.now_ms() / 1000))
            file.write_text(f" {token}\n")
            assert source.token() == token
            clock.advance(50_000)

    def test_of_a_token_without_an_expiry_is_read_each_time(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        source = source_of({"sasl.oauthbearer.token.endpoint.url": file.as_uri()})
        for token in (by_hand({}, {"exp": "x"}), by_hand({}, {"exp": 10**400}), by_hand({}, b"["), "a.!.b", "opaque"):
            file.write_text(token)
            assert source.token() == token


def test_unsigned_tokens_are_made_as_kafkas_options_say() -> None:
    options = (
        'unsecuredLoginStringClaim_sub="ann" unsecuredLoginNumberClaim_level="7" '
        'unsecuredLoginListClaim_scope="|a b|c" unsecuredLoginLifetimeSeconds="60"'
    )
    found = read_unsigned(source_of({"sasl.jaas.config": f"{MODULE} {options};"}).token())
    assert (found["sub"], found["level"], found["scope"]) == ("ann", 7, ["a b", "c"])
    assert found["exp"] - found["iat"] == 60


class TestMistakes:
    @pytest.mark.parametrize(
        ("properties", "complaint"),
        [
            ({}, "OAUTHBEARER needs a token: set sasl.oauthbearer.token.endpoint.url"),
            ({"sasl.oauthbearer.token.endpoint.url": "https://x.example"}, "set clientId and clientSecret"),
            ({"sasl.oauthbearer.token.endpoint.url": "http://x.example"}, "must be https"),
            (
                {"sasl.oauthbearer.token.endpoint.url": "https://me:s3cret@x.example/t?key=s3cret"},
                "^sasl.oauthbearer.token.endpoint.url=https://x.example/t: must not have a user or a password",
            ),
            (
                {"sasl.jaas.config": 'a.PlainLoginModule required username="a" password="s3cret";'},
                "needs OAuthBearerLoginModule",
            ),
            (
                {"sasl.jaas.config": f"{MODULE} unsecuredLoginNumberClaim_x=s3cret;"},
                "a number is expected for unsecuredLoginNumberClaim_x",
            ),
            ({"sasl.oauthbearer.extensions": "a1=b"}, "the SASL extension 'a1' cannot be sent"),
            (
                {"sasl.login.callback.handler.class": "org.example.Mine"},
                "this class is not known; set sasl.oauthbearer.token.provider",
            ),
            ({"sasl.oauthbearer.method": "magic"}, "is not one of default, oidc"),
        ],
    )
    def test_are_named_at_the_call(self, properties: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ConfigError, match=complaint) as caught:
            source_of(properties)
        assert "s3cret" not in str(caught.value)

    def test_a_password_does_not_do_for_another_mechanism(self) -> None:
        with pytest.raises(ConfigError, match="needs ScramLoginModule, not OAuthBearerLoginModule"):
            source_of({"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": f"{MODULE};"})


def test_secrets_are_in_no_repr_but_in_the_pickle() -> None:
    settings = ClientSettings.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.jaas.config": f"{MODULE} clientId=a clientSecret=one-s3cret;",
            "sasl.oauthbearer.token.endpoint.url": "https://tokens.example/",
            "sasl.oauthbearer.client.secret": "two-s3cret",
            "sasl.oauthbearer.client.credentials.client.secret": "three-s3cret",
        }
    )
    login = settings.login()
    assert login is not None
    assert login.mechanism == "OAUTHBEARER"
    assert "s3cret" not in repr(settings) + repr(login) + repr(vars(login)["tokens"].__dict__)
    assert pickle.loads(pickle.dumps(settings)) == settings
