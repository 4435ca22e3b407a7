"""The keys of an identity provider on a real HTTP server: rotated, out of reach and back, and how often it is asked."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.clock import ManualClock
from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError, ConnectionFailed
from broker.net import key_set
from broker.net.key_set import ON_DEMAND_S, FetchSchedule
from broker.net.listener import ListenerSet
from broker.net.token_verifier import SignedTokens, TokenVerifier, token_verifier
from broker.security.access_token import TokenRefused, make_unsigned
from tests.support.identity_provider import AUDIENCE, ISSUER, IdentityProvider, claims, public_jwk
from tests.support.secured import Certificates

UNSIGNED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
HANDLER = "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class"
JAAS = "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config"


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as found:
        yield found


def settings(url: str | None, **more: str) -> dict[str, str]:
    found = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "5",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "5",
        **({"sasl.oauthbearer.jwks.endpoint.url": url} if url else {}),
    }
    return {**found, **{name.replace("_", "."): value for name, value in more.items()}}


@contextlib.asynccontextmanager
async def verifying(found: dict[str, str], clock: Any = None) -> AsyncIterator[TokenVerifier]:
    security = BrokerConfig.load(None, found).listener_security()["SASL_PLAINTEXT"]
    verifier = token_verifier(security, clock)
    verifier.start()
    try:
        yield verifier
    finally:
        verifier.close()


class TestTheSchedule:
    def test_refreshes(self) -> None:
        schedule = FetchSchedule(3600, 0.1, 10)
        assert schedule.due <= 0
        schedule.begun(5)
        schedule.succeeded(6)
        assert schedule.due == 3606

    def test_waits_twice_as_long_after_each_failure(self) -> None:
        schedule, waits = FetchSchedule(3600, 0.1, 1), []
        for now in range(6):
            schedule.failed(now)
            waits.append(round(schedule.due - now, 3))
        assert waits == [0.1, 0.2, 0.4, 0.8, 1, 1]
        schedule.succeeded(6)
        schedule.failed(7)
        assert round(schedule.due - 7, 3) == 0.1

    def test_has_at_most_one_fetch_a_second_on_demand(self) -> None:
        schedule = FetchSchedule(3600, 0.1, 10)
        schedule.begun(100)
        schedule.succeeded(100.2)
        schedule.wanted(100.3)
        assert schedule.due == 100 + ON_DEMAND_S
        schedule.wanted(200)
        assert schedule.due == 101, "an earlier one stays"
        schedule.begun(200)
        schedule.failed(200)
        schedule.wanted(200)
        assert schedule.due == 200.1

    def test_never_refreshes_without_a_pause(self) -> None:
        schedule = FetchSchedule(0, 0.1, 10)
        schedule.succeeded(7)
        assert schedule.due == 7 + ON_DEMAND_S


class TestKeys:
    async def test_are_fetched_once_for_many_logins_that_came_before_them(self, provider: IdentityProvider) -> None:
        async with verifying(settings(provider.keys_url)) as verifier:
            found = await asyncio.gather(*(verifier.verify(provider.token("ann")) for _ in range(50)))
        assert {one.subject for one in found} == {"ann"}
        assert provider.key_requests == 1

    async def test_are_fetched_again_for_a_new_one(self, provider: IdentityProvider) -> None:
        async with verifying(settings(provider.keys_url)) as verifier:
            old = provider.token()
            await verifier.verify(old)
            provider.rotate()
            found = await asyncio.gather(*(verifier.verify(provider.token("bob")) for _ in range(20)))
            assert {one.subject for one in found} == {"bob"}
            assert provider.key_requests == 2
            with pytest.raises(TokenRefused, match="does not list"):
                await verifier.verify(old)
        assert provider.key_requests == 3

    async def test_are_renewed_without_being_asked_for(
        self, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(key_set, "ON_DEMAND_S", 0.01)
        found = settings(provider.keys_url, **{"sasl.oauthbearer.jwks.endpoint.refresh.ms": "10"})
        async with verifying(found):
            async with asyncio.timeout(20):
                while provider.key_requests < 4:
                    await asyncio.sleep(0.005)

    async def test_from_before_stay_while_the_provider_is_away(
        self, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(key_set, "ON_DEMAND_S", 0.0)
        caplog.set_level(logging.INFO)
        async with verifying(settings(provider.keys_url)) as verifier:
            await verifier.verify(provider.token())
            for status, document in ((503, None), (200, b"<html>sorry"), (200, b'{"keys": []}')):
                provider.status, provider.document = status, document
                provider.number = 1
                with pytest.raises(ConnectionFailed, match="cannot be fetched"):
                    await verifier.verify(provider.token())
                provider.number = 0
                assert (await verifier.verify(provider.token("ann"))).subject == "ann"
            provider.status, provider.document = 200, None
            provider.rotate()
            assert (await verifier.verify(provider.token("bob"))).subject == "bob"
        texts = [record.getMessage() for record in caplog.records]
        assert len([text for text in texts if "cannot be fetched, those from before stay" in text]) == 1
        assert len([text for text in texts if "were fetched again" in text]) == 1
        assert "eyJ" not in caplog.text

    async def test_that_come_late_are_waited_for(
        self, provider: IdentityProvider, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The broker started while the provider was down."""
        token = provider.token("ann")
        provider.__exit__()
        try:
            async with verifying(settings(provider.keys_url)) as verifier:
                login = asyncio.ensure_future(verifier.verify(token))
                async with asyncio.timeout(20):
                    while "logins wait for them" not in caplog.text:
                        await asyncio.sleep(0.005)
                assert not login.done()
                provider.__enter__()
                assert (await login).subject == "ann"
        finally:
            if not login.done():
                provider.__enter__()

    async def test_that_never_come_are_no_reason_to_refuse_a_user(self, provider: IdentityProvider) -> None:
        provider.status = 500
        async with verifying(settings(provider.keys_url)) as verifier:
            assert isinstance(verifier, SignedTokens)
            verifier._timeout_s = 0.05
            with pytest.raises(ConnectionFailed, match="there are no keys"):
                await verifier.verify(provider.token())

    async def test_may_be_in_a_file(self, tmp_path: Path, provider: IdentityProvider) -> None:
        file = tmp_path / "key set.json"
        async with verifying(settings(file.as_uri())) as verifier:
            login = asyncio.ensure_future(verifier.verify(provider.token("ann")))
            await asyncio.sleep(0)
            file.write_text(f'{{"keys": [{json.dumps(public_jwk("RSA", 0))}]}}')
            assert (await login).subject == "ann"

    async def test_are_not_waited_for_by_a_broker_that_stops(self, provider: IdentityProvider) -> None:
        provider.number = 1
        async with verifying(settings(provider.keys_url)) as verifier:
            with pytest.raises(TokenRefused):
                await verifier.verify(provider.token())
            waiting = asyncio.ensure_future(verifier.verify(provider.token()))
            await asyncio.sleep(0)
        with pytest.raises(ConnectionFailed):
            await waiting
        with pytest.raises(ConnectionFailed):
            await verifier.verify(provider.token())

    async def test_come_over_tls_from_a_server_that_is_trusted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        files = Certificates.make(tmp_path)
        with IdentityProvider(files.server) as provider:
            trusting = {JAAS: f'{MODULE} ssl.truststore.location="{files.ca}";'}
            async with verifying(settings(provider.keys_url) | trusting) as verifier:
                assert (await verifier.verify(provider.token("ann"))).subject == "ann"
            async with verifying(settings(provider.keys_url)):
                async with asyncio.timeout(20):
                    while "certificate verify failed" not in caplog.text:
                        await asyncio.sleep(0.005)
            assert provider.key_requests == 1

    async def test_behind_a_redirect_are_not_taken(
        self, provider: IdentityProvider, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with verifying(settings(f"{provider.url}/moved?secret=s3cret")):
            async with asyncio.timeout(20):
                while "set the URL that it redirects to" not in caplog.text:
                    await asyncio.sleep(0.005)
        assert provider.key_requests == 0
        assert "s3cret" not in caplog.text


async def test_time_is_the_brokers(provider: IdentityProvider) -> None:
    clock = ManualClock()
    now_s = clock.now_ms() / 1000
    token = provider.token("ann", now_s=now_s, lifetime_s=60)
    skew = {"sasl.oauthbearer.clock.skew.seconds": "5"}
    async with verifying(settings(provider.keys_url, **skew), clock) as verifier:
        assert (await verifier.verify(token)).lifetime_ms == 60_000
        clock.advance(45_000)
        assert (await verifier.verify(token)).lifetime_ms == 15_000
        clock.advance(20_000)
        with pytest.raises(TokenRefused, match="expired"):
            await verifier.verify(token)


class TestUnsignedTokens:
    async def test_are_refused_unless_a_listener_asks_for_them(self, provider: IdentityProvider) -> None:
        token = make_unsigned(claims())
        async with verifying(settings(provider.keys_url)) as verifier:
            with pytest.raises(TokenRefused, match="not signed"):
                await verifier.verify(token)
        async with verifying(settings(None) | {HANDLER: UNSIGNED}) as verifier:
            assert (await verifier.verify(token)).subject == "ann"
            with pytest.raises(TokenRefused, match="not an unsigned one"):
                await verifier.verify(provider.token())

    async def test_have_the_options_of_kafkas_module(self) -> None:
        options = 'unsecuredValidatorPrincipalClaimName="who" unsecuredValidatorRequiredScope="log-in x" '
        jaas = f'{MODULE} {options} unsecuredValidatorAllowableClockSkewMs="3000";'
        async with verifying(settings(None) | {HANDLER: UNSIGNED, JAAS: jaas}) as verifier:
            late = claims(lifetime_s=-2, who="bob", scope="x log-in y", iat=None)
            assert (await verifier.verify(make_unsigned(late))).subject == "bob"
            with pytest.raises(TokenRefused) as caught:
                await verifier.verify(make_unsigned(claims(who="bob", scope="x")))
            assert caught.value.status == "insufficient_scope"


class TestMistakes:
    @pytest.mark.parametrize(
        ("more", "complaint"),
        [
            (
                {},
                r"cannot verify the tokens of OAUTHBEARER: set listener\.name\.sasl_plaintext\.sasl\.oauthbearer\.jwks",
            ),
            (
                {"url": "http://keys.example/jwks"},
                "must be https: over http anybody on the way could change the answer",
            ),
            ({"url": "ftp://keys.example/jwks"}, "expected https://host/path or file:///path"),
            ({"url": "https://user:s3cret@keys.example"}, "url=https://keys.example: must not have a user"),
            ({"url": "file://elsewhere/keys"}, "a file is named file:///path"),
            ({"url": "https://[keys"}, "is not a URL"),
            ({HANDLER: "org.example.Mine"}, "there are OAuthBearerValidatorCallbackHandler and OAuthBearerUnsecured"),
            ({JAAS: f"{MODULE} clientId=a;"}, r"set sasl\.oauthbearer\.token\.endpoint\.url"),
            (
                {JAAS: f"{MODULE} clientId=a;", "sasl.oauthbearer.token.endpoint.url": "https://x.example"},
                f"{JAAS}: OAUTHBEARER: set clientId and clientSecret, the credentials at the token endpoint",
            ),
        ],
    )
    def test_are_named_at_the_start(self, more: dict[str, str], complaint: str) -> None:
        url = more.pop("url", None)
        with pytest.raises(ConfigError, match=complaint):
            BrokerConfig.load(None, {**settings(url), **more})

    def test_of_the_module_are_named_before_a_broker_serves(self, provider: IdentityProvider) -> None:
        for options, complaint in (
            ('ssl.truststore.location="/no/such"', r"ssl\.truststore\.location=/no/such"),
            ('ssl.nonsense="1"', "ssl.nonsense is not supported"),
        ):
            found = settings("https://keys.example/") | {JAAS: f"{MODULE} {options};"}
            with pytest.raises(ConfigError, match=complaint):
                ListenerSet(BrokerConfig.load(None, found)).bind()
        found = settings(None) | {HANDLER: UNSIGNED, JAAS: f"{MODULE} unsecuredValidatorAllowableClockSkewMs=x;"}
        with pytest.raises(ConfigError, match="AllowableClockSkewMs must be a whole number"):
            ListenerSet(BrokerConfig.load(None, found)).bind()

    def test_brokers_that_log_in_by_tokens_must_be_super_users(self) -> None:
        found = settings("https://keys.example/") | {
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.oauthbearer.token.endpoint.url": "https://tokens.example/",
            JAAS: f'{MODULE} clientId="a" clientSecret="b";',
        }
        with pytest.raises(ConfigError, match="set super.users to the names in their tokens"):
            BrokerConfig.load(None, found)
        assert BrokerConfig.load(None, found | {"super.users": "User:a"}).inter_broker().login
        bare = {key: value for key, value in found.items() if key != JAAS}
        with pytest.raises(ConfigError, match=r"oauthbearer\.sasl\.jaas\.config=.*OAuthBearerLoginModule required"):
            BrokerConfig.load(None, bare)

    def test_a_missing_library_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = builtins.__import__

        def without(name: str, *args: Any) -> Any:
            if name == "jwt":
                raise ImportError(name)
            return real(name, *args)

        monkeypatch.delitem(sys.modules, "broker.security.signed_tokens", raising=False)
        monkeypatch.setattr(builtins, "__import__", without)
        security = BrokerConfig.load(None, settings("https://keys.example/")).listener_security()["SASL_PLAINTEXT"]
        with pytest.raises(ConfigError, match=r"pip install 'pykafka-spark\[oauth\]'"):
            token_verifier(security)

    def test_kafkas_spelling_with_the_mechanism_is_understood(self) -> None:
        prefix = "listener.name.sasl_plaintext.oauthbearer.sasl."
        found = settings(None) | {
            f"{prefix}oauthbearer.jwks.endpoint.url": "https://keys.example/",
            f"{prefix}login.callback.handler.class": "a.b.OAuthBearerLoginCallbackHandler",
            HANDLER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        }
        security = BrokerConfig.load(None, found).listener_security()["SASL_PLAINTEXT"]
        assert security.settings.sasl_oauthbearer_jwks_endpoint_url == "https://keys.example/"
        assert not security.unsigned_tokens
