"""The keys of an identity provider (JWKS, RFC 7517), and the signatures of tokens. PyJWT is behind it.

Only asymmetric algorithms are accepted, each with a key of its own kind: a token can choose neither `none` nor to be
checked with a public key as if that were a shared secret. Imported only for listeners that take signed tokens (extra
`[oauth]`).
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm

from broker.security.access_token import TokenRefused, UnknownKey, read_json

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE: Final = {
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
    "Ed448": ("EdDSA",),
}
_ACCEPTED: Final = frozenset(_RSA).union(*_BY_CURVE.values())
_PUBLIC_PARTS: Final = ("kty", "n", "e", "crv", "x", "y")
_LEAST_RSA_BITS: Final = 2048
_MOST_KEYS: Final = 100


class _Key(NamedTuple):
    id: str | None
    algorithms: tuple[str, ...]
    key: Any


class SigningKeys:
    """The public keys of one document."""

    def __init__(self, document: bytes) -> None:
        """Keys for other purposes and of other kinds are left out. Raises ValueError if none is left."""
        try:
            found = json.loads(document)["keys"]
        except (ValueError, TypeError, KeyError, RecursionError):
            found = None
        if not isinstance(found, list):
            raise ValueError("it is not a JSON Web Key Set")
        self._jws = jwt.PyJWS()
        self._keys = [key for jwk in found[:_MOST_KEYS] if (key := _usable(jwk)) is not None]
        if not self._keys:
            raise ValueError("it has no key that can verify a signature")

    def __len__(self) -> int:
        return len(self._keys)

    def claims(self, token: str) -> dict[str, Any]:
        """The claims of a token that one of the keys has signed. Raises TokenRefused, of which UnknownKey is one."""
        header = read_json(token.partition(".")[0])
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in _ACCEPTED:
            raise TokenRefused("the token is not signed, or by an algorithm that is not accepted")
        if "crit" in header or "b64" in header or not isinstance(key_id, str | None):
            raise TokenRefused("the token's header cannot be understood")
        fitting = [
            known.key
            for known in self._keys
            if algorithm in known.algorithms and (key_id is None or known.id == key_id)
        ]
        for key in fitting:
            try:
                self._jws.decode_complete(token, key, algorithms=[algorithm])
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, RecursionError):
                raise TokenRefused("the token cannot be read") from None
            return read_json(token.split(".")[1])
        if fitting and key_id is not None:
            raise TokenRefused("the token's signature is wrong")
        raise UnknownKey("the token is signed by a key that the identity provider does not list")


def _usable(jwk: Any) -> _Key | None:
    """A public key that verifies signatures; None for every other one."""
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or "verify" not in jwk.get("key_ops", ["verify"]):
        return None
    algorithms: tuple[str, ...] = _RSA if jwk.get("kty") == "RSA" else _BY_CURVE.get(str(jwk.get("crv")), ())
    if "alg" in jwk:
        algorithms = tuple(name for name in algorithms if name == jwk["alg"])
    key_id = jwk.get("kid")
    if not algorithms or not isinstance(key_id, str | None):
        return None
    try:
        public = {name: jwk[name] for name in _PUBLIC_PARTS if name in jwk}
        key = jwt.PyJWK(public, algorithm=algorithms[0]).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    if algorithms[0] in _RSA and key.key_size < _LEAST_RSA_BITS:
        return None
    return _Key(key_id, algorithms, key)
