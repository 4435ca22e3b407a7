"""The access tokens with which this process logs in: asked for once for all connections, and renewed in time.

`token_source(provider, options, host)` is the door: for OAUTHBEARER, and for whoever else needs a token over HTTP. It
returns the same TokenSource to all who name the same provider with the same options. What is held in memory is in no
pickle: settings name a provider, and each process asks with its own credentials.

A token that was used since it came is renewed at four fifths of its life by one thread of the process, which ends when
there is none; one that nobody used is asked for again when somebody does. No repr and no error has a secret or a token.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from broker.clock import Clock, SystemClock
from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed, PykafkaError
from broker.security.access_token import TokenRefused, read_json
from broker.security.identity_provider import ProviderFailed
from broker.security.token_providers.provider import ProvidedToken, TokenProvider
from broker.security.token_providers.provider_table import find_provider

logger = logging.getLogger(__name__)

_RENEW_AT: Final = 0.8
"""The share of a token's lifetime after which a new one is asked for (Kafka's sasl.login.refresh.window.factor)."""
_RETRY_S: Final = 10.0
_EXTENSION: Final = "extension_"
_LONGEST_REASON: Final = 600


class _Held(NamedTuple):
    provided: ProvidedToken
    renew_at: float
    expires_at: float


class _Hidden(dict[str, str]):
    """Options, among them secrets."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


_NONE: Final = _Held(ProvidedToken(""), 0.0, 0.0)


class TokenSource:
    """The current token of a provider. Thread-safe."""

    def __init__(
        self,
        provider: TokenProvider,
        options: Mapping[str, str],
        host: str = "",
        clock: Clock | None = None,
        in_use: Callable[[TokenSource], None] = lambda source: None,
    ) -> None:
        """`in_use` is called with each use, and sees to `renew`."""
        self.provider = provider
        self.principal = ""
        """Whose the last token was, where the provider tells."""
        self._options = _Hidden(options)
        self._host = host
        self._clock = clock or SystemClock()
        self._in_use = in_use
        self._asking = threading.Lock()
        self._held = _NONE
        self._used = False

    def __repr__(self) -> str:
        return f"<TokenSource {self.provider.name} {self.principal}>"

    @property
    def key(self) -> tuple[str, frozenset[tuple[str, str]], str]:
        """What sources are the same by."""
        return self.provider.name, frozenset(self._options.items()), self._host

    @property
    def described(self) -> str:
        return f"the access token{self.principal and f' of {self.principal}'} from token provider {self.provider.name}"

    @property
    def holds(self) -> bool:
        """Whether there is a token that is valid still."""
        return self._clock.monotonic() < self._held.expires_at

    def current(self) -> ProvidedToken:
        """A token that is valid. When no new one can be had, one from before is used until it expires.

        Raises ConnectionFailed when another attempt may help, AuthenticationFailed and ConfigError when not.
        """
        found = self._current()
        self._used = True
        self._in_use(self)
        return found

    def token(self) -> str:
        """The text of `current`."""
        return self.current().token

    def forget(self, token: str | None = None) -> None:
        """The other side refused `token` (None: whichever it was): ask for another one next time."""
        if token is None or token == self._held.provided.token:
            self._held = _NONE

    def renew(self) -> float | None:
        """Renew the token if it is time; the seconds until it will be. None while nobody uses it."""
        held, now = self._held, self._clock.monotonic()
        if not self._used or now >= held.expires_at:
            return None
        if now >= held.renew_at:
            self._used = False
            with self._asking:
                try:
                    self._ask()
                except PykafkaError as error:
                    logger.warning("%s; whoever needs one asks again", error)
        return max(self._held.renew_at - self._clock.monotonic(), 0.0) or None

    def _current(self) -> ProvidedToken:
        held, now = self._held, self._clock.monotonic()
        if now < held.renew_at:
            return held.provided
        if not self._asking.acquire(blocking=now >= held.expires_at):
            return held.provided  # another thread asks, and this one is good meanwhile
        try:
            held = self._held
            return held.provided if self._clock.monotonic() < held.renew_at else self._ask()
        finally:
            self._asking.release()

    def _ask(self) -> ProvidedToken:
        now = self._clock.monotonic()
        try:
            found = self.provider.retrieve(self._options, self._host)
            provided = _checked(found)
        except ConfigError:
            raise
        except Exception as error:  # whatever a provider raises
            if self._held.provided.token and now < self._held.expires_at:
                self._held = self._held._replace(renew_at=now + _RETRY_S)
                return self._held.provided
            raise self._failure(error) from None
        told = (_lifetime_s(provided.token, self._clock), provided.lifetime_s)
        lifetime_s = min((one for one in told if one), default=0.0)
        self.principal = provided.principal or self.principal
        self._held = _Held(provided, now + lifetime_s * _RENEW_AT, now + lifetime_s) if lifetime_s > 0 else _NONE
        return provided

    def _failure(self, error: Exception) -> PykafkaError:
        again = isinstance(error, OSError) or (isinstance(error, ProviderFailed) and not error.refused)
        reason = str(error) if isinstance(error, PykafkaError) else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())[:_LONGEST_REASON]
        kind = ConnectionFailed if again else AuthenticationFailed
        return kind(f"there is no access token: sasl.oauthbearer.token.provider={self.provider.name}: {reason}")


class TokenSources:
    """Those of a process, and the thread that renews their tokens. Thread-safe."""

    def __init__(self, clock: Clock | None = None, *, background: bool = True) -> None:
        """Without `background` the owner calls `renew_due`."""
        self._clock = clock
        self._background = background
        self._changed = threading.Condition()
        self._sources: dict[object, TokenSource] = {}
        self._thread: threading.Thread | None = None
        self._woken = False

    def get(self, provider: str, options: Mapping[str, str], host: str = "") -> TokenSource:
        """Raises ConfigError for a provider that there is not, and for options that cannot work."""
        found = find_provider(provider)
        found.check(options, host)
        made = TokenSource(found, options, host, self._clock, self.in_use)
        with self._changed:
            known = self._sources.get(made.key)
            if known is None:
                self._sources = {key: source for key, source in self._sources.items() if source.holds}
                known = self._sources[made.key] = made
            return known

    def in_use(self, source: TokenSource) -> None:
        """See to it that the tokens of `source` are renewed."""
        with self._changed:
            self._sources.setdefault(source.key, source)
            self._woken = True
            self._changed.notify()
            if self._thread is None and self._background:
                thread = threading.Thread(target=self._run, name="pykafka-tokens", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter is ending
                    thread.start()
                    self._thread = thread

    def renew_due(self) -> float | None:
        """Renew what is due; the seconds until the next one is. None while no token is in use."""
        with self._changed:
            sources = list(self._sources.values())
        waits = [wait_s for source in sources if (wait_s := source.renew()) is not None]
        return min(waits, default=None)

    def _run(self) -> None:
        while True:
            wait_s = self.renew_due()
            with self._changed:
                if not self._woken:
                    if wait_s is None:
                        self._thread = None
                        return
                    self._changed.wait(wait_s)
                self._woken = False


_process = TokenSources()


def _in_child() -> None:
    """A forked child has no thread of its parent, and its locks may be held for ever."""
    global _process
    _process = TokenSources()


os.register_at_fork(after_in_child=_in_child)


def token_source(provider: str, options: Mapping[str, str], host: str = "") -> TokenSource:
    """The one of this process for `provider` (a name as in sasl.oauthbearer.token.provider), its `options` and the
    `host` that the tokens are for. Nobody is asked for a token yet. Raises ConfigError."""
    return _process.get(provider, options, host)


def sasl_extensions(options: Mapping[str, str]) -> dict[str, str]:
    """The extensions (KIP-342) among the options of a login module: `extension_NAME`."""
    return {name[len(_EXTENSION) :]: text for name, text in options.items() if name.startswith(_EXTENSION)}


def without_extensions(options: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in options.items() if not name.startswith(_EXTENSION)}


def _checked(found: object) -> ProvidedToken:
    """What a provider of somebody's own returned. Raises TypeError, without a token."""
    if not isinstance(found, tuple) or not 1 <= len(found) <= len(ProvidedToken._fields):
        raise TypeError("it must return a ProvidedToken, or a tuple of token, lifetime_s, extensions and principal")
    made: Any = ProvidedToken(*found)
    if not isinstance(made.token, str) or not made.token or not isinstance(made.lifetime_s, int | float):
        raise TypeError("the token must be text that is not empty, its lifetime a number of seconds")
    return ProvidedToken(*made)


def _lifetime_s(token: str, clock: Clock) -> float:
    """From the token's expiry; 0 where it has none that can be read."""
    try:
        expires = read_json(token.split(".")[1])["exp"]
        return float(expires) - clock.now_ms() / 1000
    except (TokenRefused, IndexError, KeyError, TypeError, ValueError, OverflowError):
        return 0.0
