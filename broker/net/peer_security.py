"""How this broker connects to others: through which listener, with which TLS context and login."""

from __future__ import annotations

import dataclasses
import functools
import ssl

from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.net.tls import RenewedContext, peer_context
from broker.security.login import Login


@dataclasses.dataclass(frozen=True)
class PeerSecurity:
    """Made once by the server, and given to each PeerConnection."""

    listener: str = "PLAINTEXT"
    """The inter-broker listener: brokers connect to this listener of other brokers."""
    stores: RenewedContext | None = None
    login: Login | None = None

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For a new connection."""
        return None if self.stores is None else self.stores.context

    def renew_certificates(self) -> None:
        """Look whether the key store and the trust store have changed."""
        if self.stores is not None:
            self.stores.renew()

    @classmethod
    def of(cls, config: BrokerConfig) -> PeerSecurity:
        """From the broker's settings. Raises ConfigError when brokers with these settings cannot talk to each other."""
        between = config.inter_broker()
        listener = between.security.listener
        try:
            stores = None
            if listener.encrypted:
                make = functools.partial(peer_context, between.security)
                stores = RenewedContext("connections to other brokers", between.security.settings, make)
        except ConfigError as error:
            raise ConfigError(f"listener {listener.name}, for connections to other brokers: {error}") from None
        return cls(listener.name, stores, between.login)


def peer_security(config: BrokerConfig) -> tuple[PeerSecurity, ConfigError | None]:
    """How to connect to other brokers; with an error if that is impossible, which matters where there are others."""
    try:
        return PeerSecurity.of(config), None
    except ConfigError as error:
        return PeerSecurity(), error
