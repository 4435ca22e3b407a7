"""One token for all connections of a process: who shares it, when it is renewed, and what providers of one's own do.

Those that are asked over HTTP are in tests/client/test_token_source.py and in tests/security/token_providers.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.client.client_settings import ClientSettings
from broker.clock import ManualClock
from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed
from broker.security import token_source as module
from broker.security.access_token import make_unsigned
from broker.security.login import RefusedByBroker
from broker.security.oauthbearer import ClientFirst, TokenLogin
from broker.security.token_providers.provider import ProvidedToken
from broker.security.token_source import TokenSource, TokenSources
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import KafkaBatchReader
from tests.support.waiting import eventually

HERE = f"{__name__}:give"
LIFETIME_S = 100.0


class Calls:
    """What the provider of this module is asked, and what it does."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, str], str]] = []
        self.error: Exception | None = None
        self.returns: Any = None
        self.lifetime_s = LIFETIME_S
        self.wait = threading.Event()
        self.wait.set()


CALLS = Calls()


def give(options: Mapping[str, str], host: str) -> Any:
    """A token provider."""
    CALLS.asked.append((dict(options), host))
    CALLS.wait.wait(30)
    if CALLS.error is not None:
        raise CALLS.error
    number = len(CALLS.asked)
    return CALLS.returns or ProvidedToken(f"token-{number}-s3cret", CALLS.lifetime_s, {"purpose": "test"}, "ann")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    global CALLS
    CALLS = Calls()
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(module, "_process", TokenSources())
    yield CALLS
    CALLS.wait.set()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sources(clock: ManualClock) -> TokenSources:
    return TokenSources(clock, background=False)


def settings(**more: str) -> ClientSettings:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "bootstrap.servers": "kafka.example:9"}
    return ClientSettings.from_properties({**given, "sasl.oauthbearer.token.provider": HERE, **more})


def login(**more: str) -> TokenLogin:
    found = settings(**more).login()
    assert isinstance(found, TokenLogin)
    return found


def test_it_is_asked_once_for_the_same_provider_options_and_host(sources: TokenSources, calls: Calls) -> None:
    tokens = {sources.get(HERE, {"a": "1"}, "h").token() for _ in range(3)}
    assert (len(tokens), calls.asked) == (1, [({"a": "1"}, "h")])
    sources.get(HERE, {"a": "2"}, "h").token()
    sources.get(HERE, {"a": "1"}, "i").token()
    assert calls.asked[1:] == [({"a": "2"}, "h"), ({"a": "1"}, "i")]


def test_threads_that_need_one_at_once_wait_for_one_answer(sources: TokenSources, calls: Calls) -> None:
    calls.wait.clear()
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(sources.get(HERE, {}).token())) for _ in range(5)]
    for thread in threads:
        thread.start()
    eventually(lambda: bool(calls.asked))
    calls.wait.set()
    for thread in threads:
        thread.join(30)
    assert (len(found), len(set(found)), len(calls.asked)) == (5, 1, 1)


@pytest.mark.parametrize(("given_s", "jwt_s", "life_s"), [(50, None, 50), (0, 60, 60), (50, 60, 50), (60, 50, 50)])
def test_a_token_lives_as_long_as_its_provider_and_its_expiry_say(
    sources: TokenSources, clock: ManualClock, calls: Calls, given_s: float, jwt_s: float | None, life_s: float
) -> None:
    now_s = clock.now_ms() / 1000
    calls.returns = (make_unsigned({"exp": now_s + jwt_s}) if jwt_s else "opaque", given_s)
    source = sources.get(HERE, {})
    source.token()
    clock.advance(int(life_s * 1000) - 1)
    assert source.holds
    clock.advance(1)
    assert not source.holds


class TestRenewal:
    def test_comes_at_four_fifths_of_the_life_of_a_token_that_is_used(
        self, sources: TokenSources, clock: ManualClock, calls: Calls
    ) -> None:
        source = sources.get(HERE, {})
        first = source.token()
        assert sources.renew_due() == pytest.approx(80)
        clock.advance(80_000)
        sources.renew_due()
        assert len(calls.asked) == 2
        assert source.token() != first
        assert len(calls.asked) == 2

    def test_ends_when_nobody_uses_the_token(self, sources: TokenSources, clock: ManualClock, calls: Calls) -> None:
        source = sources.get(HERE, {})
        source.token()
        clock.advance(80_000)
        sources.renew_due()
        clock.advance(80_000)
        assert sources.renew_due() is None
        assert len(calls.asked) == 2
        clock.advance(80_000)
        source.token()
        assert len(calls.asked) == 3
        assert sources.renew_due() == pytest.approx(80)

    def test_that_takes_long_keeps_nobody_waiting(
        self, sources: TokenSources, clock: ManualClock, calls: Calls
    ) -> None:
        source = sources.get(HERE, {})
        first = source.token()
        clock.advance(85_000)
        calls.wait.clear()
        renewing = threading.Thread(target=sources.renew_due)
        renewing.start()
        eventually(lambda: len(calls.asked) == 2)
        assert source.token() == first
        calls.wait.set()
        renewing.join(30)
        assert source.token() != first

    def test_that_fails_leaves_the_token_that_holds(
        self, sources: TokenSources, clock: ManualClock, calls: Calls
    ) -> None:
        source = sources.get(HERE, {})
        first = source.token()
        clock.advance(85_000)
        calls.error = RuntimeError("away")
        sources.renew_due()
        assert source.token() == first
        clock.advance(20_000)
        assert sources.renew_due() is None
        with pytest.raises(AuthenticationFailed, match="RuntimeError: away"):
            source.token()

    def test_is_done_by_a_thread_that_ends(self, calls: Calls) -> None:
        """It renews once what was used once, finds that nobody uses it any more, and ends."""
        calls.lifetime_s = 0.2
        sources = TokenSources()
        sources.get(HERE, {}).token()
        eventually(lambda: len(calls.asked) == 2)
        eventually(lambda: sources._thread is None)
        sources.get(HERE, {}).token()
        eventually(lambda: len(calls.asked) >= 3)
        eventually(lambda: sources._thread is None)

    def test_in_a_forked_child_is_its_own(self, calls: Calls) -> None:
        """The child has no thread of its parent, and no token."""
        module.token_source(HERE, {}).token()
        before = module._process
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons, for a process with threads
            child = os.fork()
        if child == 0:
            fresh = module._process is not before and module.token_source(HERE, {}).token() != ""
            os._exit(0 if fresh and module._process._thread is not None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert module._process is before


class TestAProviderOfOnesOwn:
    def test_gets_its_options_and_the_first_host(self, calls: Calls) -> None:
        jaas = 'a.OAuthBearerLoginModule required path="kv/kafka" extension_team="x";'
        found = login(**{"sasl.jaas.config": jaas, "sasl.oauthbearer.scope": "kafka"})
        first = ClientFirst.parse(next(found.begin("broker-7")))
        assert calls.asked == [({"path": "kv/kafka", "scope": "kafka"}, "kafka.example")]
        assert (first.token, first.extensions) == ("token-1-s3cret", {"purpose": "test", "team": "x"})

    def test_may_return_a_plain_tuple(self, calls: Calls) -> None:
        calls.returns = ("plain-token", 5)
        assert login().tokens.current() == ProvidedToken("plain-token", 5)

    @pytest.mark.parametrize(
        "returned", ["a-s3cret", ("",), (b"a-s3cret",), ("a-s3cret", "soon"), ("a", 1, {}, "b", 2)]
    )
    def test_that_returns_something_else_is_told(self, calls: Calls, returned: Any) -> None:
        calls.returns = returned
        with pytest.raises(AuthenticationFailed, match="TypeError: ") as caught:
            login().tokens.token()
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (TimeoutError("vault is away"), ConnectionFailed),
            (ConnectionRefusedError("vault is away"), ConnectionFailed),
            (KeyError("vault is away"), AuthenticationFailed),
            (ConfigError("vault is away"), ConfigError),
        ],
    )
    def test_says_by_its_error_whether_to_try_again(
        self, calls: Calls, error: Exception, kind: type[Exception]
    ) -> None:
        calls.error = error
        with pytest.raises(kind, match="vault is away"):
            login().tokens.token()

    def test_is_found_by_an_entry_point(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours = importlib.metadata.EntryPoint("corporate", HERE, "pykafka.token_providers")
        real = importlib.metadata.entry_points

        def entry_points(**wanted: Any) -> Any:
            if wanted.get("group") != ours.group:
                return real(**wanted)
            return importlib.metadata.EntryPoints([ours] if wanted.get("name", ours.name) == ours.name else [])

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
        assert login(**{"sasl.oauthbearer.token.provider": "corporate"}).tokens.token() == "token-1-s3cret"
        with pytest.raises(
            ConfigError, match="there are oidc, file, .*unsecured, corporate, or name a module:function"
        ):
            login(**{"sasl.oauthbearer.token.provider": "corporal"})

    @pytest.mark.parametrize(
        ("name", "complaint"),
        [
            ("nowhere.at_all:give", r"nowhere.at_all:give: it cannot be imported in this process \(No module named"),
            (f"{__name__}:nothing", "it cannot be imported in this process .*nothing"),
            (f"{__name__}:HERE", "it is not callable"),
            (":give", "it cannot be imported"),
        ],
    )
    def test_that_is_not_there_is_told_at_the_call(self, name: str, complaint: str) -> None:
        with pytest.raises(ConfigError, match=complaint):
            login(**{"sasl.oauthbearer.token.provider": name})


class TestARefusal:
    def test_names_provider_principal_and_what_to_check(self) -> None:
        found = login()
        exchange = found.begin("h")
        next(exchange)
        exchange.send(b'{"status": "invalid_token"}')
        with pytest.raises(RefusedByBroker, match=rf"invalid_token, its log says why; check what {HERE} asks for"):
            exchange.throw(RefusedByBroker("it said less"))
        assert found.described == f"the access token of ann from token provider {HERE}"
        assert found.settings == f"sasl.oauthbearer.token.provider={HERE} and its options"

    def test_makes_the_next_login_ask_again_and_only_once_for_a_token(self, calls: Calls) -> None:
        source = login().tokens
        refused = source.token()
        source.forget(refused)
        source.token()
        source.forget(refused)  # of another connection, which had the same one
        source.token()
        assert len(calls.asked) == 2


def test_settings_options_and_pickles_name_the_provider_and_have_no_token(tmp_path: Path) -> None:
    found = settings()
    options = {"kafka.bootstrap.servers": "kafka.example:9", "subscribe": "t", "kafka.security.protocol": "SASL_SSL"}
    more = {"kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.oauthbearer.token.provider": HERE}
    reader = KafkaBatchReader(parse_options({**options, **more}, Mode.BATCH))
    login_of = found.login()
    assert isinstance(login_of, TokenLogin)
    assert login_of.tokens.token().endswith("-s3cret")
    for one in (found, reader):
        pickled = pickle.dumps(one)
        assert HERE.encode() in pickled
        assert b"s3cret" not in pickled
    shown = repr(login_of) + repr(login_of.tokens) + repr(vars(login_of.tokens)) + repr(login_of.tokens.current())
    assert "s3cret" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(login_of.tokens)


def test_a_source_may_be_had_by_others_than_kafkas_clients(calls: Calls) -> None:
    """The clients of schema registries, with the same tokens as long as their options are the same."""
    one = module.token_source(HERE, {"a": "1"}, "registry.example")
    assert one is module.token_source(HERE, {"a": "1"}, "registry.example")
    assert isinstance(one, TokenSource)
    assert one.token() == "token-1-s3cret"
