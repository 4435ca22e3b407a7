"""How this broker connects to others: through which listener, with which TLS context and login."""

from __future__ import annotations

import dataclasses
import ssl

from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.net.tls import peer_context
from broker.security.jaas import Login

__all__ = ["PeerSecurity"]


@dataclasses.dataclass(frozen=True)
class PeerSecurity:
    """Made once by the server, and given to each PeerConnection."""

    listener: str = "PLAINTEXT"
    """The inter-broker listener: brokers connect to this listener of other brokers."""
    tls: ssl.SSLContext | None = None
    login: Login | None = None

    @classmethod
    def of(cls, config: BrokerConfig) -> PeerSecurity:
        """From the broker's settings. Raises ConfigError when brokers with these settings cannot talk to each other."""
        between = config.inter_broker()
        listener = between.security.listener
        try:
            tls = peer_context(between.security) if listener.encrypted else None
        except ConfigError as error:
            raise ConfigError(f"listener {listener.name}, for connections to other brokers: {error}") from None
        return cls(listener.name, tls, between.login)
