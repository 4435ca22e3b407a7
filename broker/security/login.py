"""Who logs in by SASL, and how: what every mechanism brings on the side that logs in.

A `Login` is made of settings, by clients (client/logins.py) and by brokers for other brokers
(config/security_settings.py). Each connection begins an exchange of its own; protocol/sasl_login.py sends its messages.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Generator
from typing import ClassVar

from broker.errors import PykafkaError

Exchange = Generator[bytes, bytes, None]
"""Yields the messages of the side that logs in, and is sent the broker's answers.

Raises LoginRefused. Where the broker refuses with an error, RefusedByBroker is thrown into it.
"""


class LoginRefused(PykafkaError):
    """The other side's message is not valid, or it does not know the secret."""


class RefusedByBroker(LoginRefused):
    """The broker refused what this side sent; the message is what it says."""


@dataclasses.dataclass(frozen=True)
class Login(abc.ABC):
    """A subclass is a kind of mechanism. Its repr has no secret."""

    mechanism: str
    user: str
    """For errors; "" where the credentials alone know."""
    settings: str = dataclasses.field(
        default="sasl.username and sasl.password", kw_only=True, repr=False, compare=False
    )
    """Where the credentials are set, for errors."""

    waits: ClassVar[bool] = False
    """Whether `begin` may wait for another server than the broker."""

    @property
    def principal(self) -> str | None:
        """What brokers call who logs in; None where they take it from the credentials by rules of their own."""
        return f"User:{self.user}"

    @property
    def described(self) -> str:
        """What a broker refuses, for errors."""
        return f"the login of user {self.user!r} by {self.mechanism}"

    @abc.abstractmethod
    def begin(self, host: str) -> Exchange:
        """For a connection to `host`.

        Raises ConnectionFailed when another attempt may help, AuthenticationFailed and ConfigError when not.
        """


@dataclasses.dataclass(frozen=True)
class PasswordLogin(Login):
    """By a user name and a password."""

    password: str = dataclasses.field(repr=False)
