"""SCRAM (RFC 5802, 7677) as in Kafka: the stored credentials, and the messages of both sides. Pure.

Used by the broker's `sasl.py`, by whoever logs in, by the users in ZooKeeper and by `pykafka users`. As in Kafka, names
and passwords are used in UTF-8 without SASLprep. An unknown user gets the same messages as a known one and fails at the
end, like a wrong password. `LoginRefused` never contains a secret or a hint for an attacker.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from enum import Enum

from broker.control_characters import escaped
from broker.security.login import Exchange, LoginRefused, PasswordLogin

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384
"""The limit of Kafka's brokers. More iterations would cost clients too much CPU time."""
_CLIENT_MAX_ITERATIONS = 1_000_000
"""A server that asks for more iterations is refused, because it could block the client for long: these take half a
second."""
_ITERATIONS = re.compile("[0-9]{1,9}")
_MAX_SHOWN = 100
"""Characters of what the other side sent."""
_SALT_BYTES = 16
_DECOYS = secrets.token_bytes(32)
"""The salts of unknown users are derived from this, so that they stay the same, as those of real users do."""


class ScramMechanism(Enum):
    """Kafka's two mechanisms. The value is the SASL name."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> int:
        """Its number in the protocol (`org.apache.kafka.clients.admin.ScramMechanism`)."""
        return 1 if self is ScramMechanism.SCRAM_SHA_256 else 2

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def hash_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size

    def hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """The slow step: about 2 ms for 4096 iterations."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)

    def stored_key(self, salted_password: bytes) -> bytes:
        return hashlib.new(self.hash_name, self.hmac(salted_password, b"Client Key")).digest()

    def server_key(self, salted_password: bytes) -> bytes:
        return self.hmac(salted_password, b"Server Key")


@dataclasses.dataclass(frozen=True, slots=True)
class ScramCredential:
    """The stored form of a password: enough to check it, not enough to log in with it."""

    salt: bytes = dataclasses.field(repr=False)
    stored_key: bytes = dataclasses.field(repr=False)
    server_key: bytes = dataclasses.field(repr=False)
    iterations: int

    @classmethod
    def make(
        cls, mechanism: ScramMechanism, password: str, iterations: int = MIN_ITERATIONS, salt: bytes | None = None
    ) -> ScramCredential:
        salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
        return cls.of_salted(mechanism, mechanism.salted_password(password, salt, iterations), salt, iterations)

    @classmethod
    def of_salted(cls, mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
        """The credential for a salted password, which AlterUserScramCredentials sends."""
        return cls(salt, mechanism.stored_key(salted), mechanism.server_key(salted), iterations)

    def encode(self) -> str:
        """The text that Kafka keeps in ZooKeeper (`ScramCredentialUtils`)."""
        salt, stored, server = (_base64(part) for part in (self.salt, self.stored_key, self.server_key))
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def decode(cls, text: str) -> ScramCredential:
        """Raises ValueError."""
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored, server = (
                base64.b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            return cls(salt, stored, server, int(fields["iterations"]))
        except (KeyError, ValueError):
            raise ValueError("not a SCRAM credential") from None  # the text has keys: do not show it


class ScramServer:
    """One login as the broker sees it: `first`, then `final`. `user` is set by the first, `complete` by `step`."""

    lifetime_ms = 0
    """A password does not expire."""

    def __init__(self, mechanism: ScramMechanism, find: Callable[[str], ScramCredential | None]) -> None:
        self._mechanism = mechanism
        self._find = find
        self._credential: ScramCredential | None = None
        self._known = False
        self._nonce = ""
        self._header = ""
        self._so_far = ""
        self.user = ""
        self.complete = False

    def step(self, message: bytes) -> bytes:
        """`first` for the first message and `final` for the second, which completes the login."""
        if self._credential is None:
            return self.first(message)
        answer = self.final(message)
        self.complete = True
        return answer

    def first(self, message: bytes) -> bytes:
        """client-first → server-first. Raises LoginRefused."""
        text = _text(message)
        header, _, bare = (text.partition(",")[2]).partition(",")
        if text[:2] not in ("n,", "y,"):
            raise LoginRefused("channel binding is not offered")
        fields = _fields(bare)
        name = fields.get("n", "")
        self.user = _unescape(name)
        if not self.user or not fields.get("r") or "m" in fields or fields.get("tokenauth", "false") != "false":
            raise LoginRefused("the first SCRAM message cannot be read")
        if header and _unescape(header.removeprefix("a=")) != self.user:
            raise LoginRefused("a user cannot log in as another user")
        credential = self._find(self.user)
        self._known = credential is not None
        self._credential = credential = credential or self._decoy()
        self._header = text[:2] + header + ","
        self._nonce = fields["r"] + secrets.token_urlsafe(24)
        answer = f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}"
        self._so_far = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """client-final → server-final. Raises LoginRefused if the client does not know the password."""
        text = _text(message)
        without_proof, _, proof = text.rpartition(",p=")
        fields, credential, mechanism = _fields(without_proof), self._credential, self._mechanism
        if credential is None or fields.get("r") != self._nonce or fields.get("c") != _base64(self._header.encode()):
            raise LoginRefused("the last SCRAM message does not match the first")
        signed = f"{self._so_far},{without_proof}".encode()
        signature = mechanism.hmac(credential.stored_key, signed)
        given = _decode(proof)
        client_key = bytes(a ^ b for a, b in zip(given, signature, strict=False))
        right = hmac.compare_digest(hashlib.new(mechanism.hash_name, client_key).digest(), credential.stored_key)
        if not (right and self._known and len(given) == len(signature)):
            raise LoginRefused("wrong user or password")
        return b"v=" + _base64(mechanism.hmac(credential.server_key, signed)).encode()

    def _decoy(self) -> ScramCredential:
        seed = self._mechanism.hmac(_DECOYS, self.user.encode())
        return ScramCredential(seed[:_SALT_BYTES], seed, seed, MIN_ITERATIONS)


class ScramClient:
    """One login of a client: `first`, `final`, then `verify`, which checks that the broker knows the password too."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = secrets.token_urlsafe(24)
        self._bare = f"n={_escape(user)},r={self._nonce}"
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """server-first → client-final. Raises LoginRefused."""
        text = _text(server_first)
        fields, mechanism = _fields(text), self._mechanism
        _check_error(fields)
        nonce, iterations, salt = fields.get("r", ""), fields.get("i", ""), fields.get("s", "")
        if not nonce.startswith(self._nonce) or not _ITERATIONS.fullmatch(iterations) or not salt:
            raise LoginRefused("the broker's SCRAM message cannot be read")
        if not MIN_ITERATIONS <= int(iterations) <= _CLIENT_MAX_ITERATIONS:
            raise LoginRefused(f"the broker asks for {iterations} iterations, which is not safe")
        salted = mechanism.salted_password(self._password, _decode(salt), int(iterations))
        without_proof = f"c={_base64(b'n,,')},r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        signature = mechanism.hmac(mechanism.stored_key(salted), signed)
        proof = bytes(a ^ b for a, b in zip(mechanism.hmac(salted, b"Client Key"), signature, strict=True))
        self._expected = mechanism.hmac(mechanism.server_key(salted), signed)
        return f"{without_proof},p={_base64(proof)}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raise LoginRefused unless the broker knows the password's keys."""
        fields = _fields(_text(server_final))
        _check_error(fields)
        if not hmac.compare_digest(_decode(fields.get("v", "")), self._expected):
            raise LoginRefused("the broker does not know this password either: it is not who it claims to be")


@dataclasses.dataclass(frozen=True)
class ScramLogin(PasswordLogin):
    def begin(self, host: str) -> Exchange:
        client = ScramClient(ScramMechanism(self.mechanism), self.user, self.password)
        answer = yield client.first()
        answer = yield client.final(answer)
        client.verify(answer)


def _check_error(fields: Mapping[str, str]) -> None:
    if "e" in fields:
        raise LoginRefused(f"the broker says {escaped(fields['e'])[:_MAX_SHOWN]}")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one, and so is what text that is not ASCII raises
        raise LoginRefused("a SCRAM message has invalid base64") from None


def _text(message: bytes) -> str:
    try:
        return bytes(message).decode()
    except UnicodeDecodeError:
        raise LoginRefused("a SCRAM message is not UTF-8 text") from None


def _fields(text: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in text.split(","))


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
