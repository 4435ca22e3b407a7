"""Access tokens: the claims that are required, the signatures that count, and the attacks that are known."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from broker.security.access_token import (
    TokenRefused,
    TokenRules,
    UnknownKey,
    make_unsigned,
    read_json,
    read_unsigned,
)
from broker.security.signed_tokens import SigningKeys
from tests.support.identity_provider import AUDIENCE, ISSUER, by_hand, claims, private_key, public_jwk, signed

NOW_S = 1_700_000_000
RULES = TokenRules(issuer=ISSUER, audiences=frozenset({"other", AUDIENCE}))


def keys_of(*found: Any) -> SigningKeys:
    return SigningKeys(json.dumps({"keys": found}).encode())


def check(rules: TokenRules = RULES, **more: Any) -> Any:
    return rules.check(claims(now_s=NOW_S, **more), NOW_S * 1000)


class TestClaims:
    def test_of_a_good_token(self) -> None:
        token = check(scope="read write", lifetime_s=60)
        assert (token.subject, token.lifetime_ms, token.scopes) == ("ann", 60_000, {"read", "write"})
        assert check(aud=["x", 1, AUDIENCE], scope=["read"]).scopes == {"read"}

    def test_of_other_names(self) -> None:
        rules = TokenRules(subject_claim="azp", scope_claim="scp", scopes=frozenset({"log-in"}))
        token = check(rules, aud=None, azp=" bob ", scp=["log-in", "x"])
        assert (token.subject, token.scopes) == ("bob", {"log-in", "x"})
        with pytest.raises(TokenRefused, match="lacks a required scope") as caught:
            check(rules, aud=None, azp="bob", scp="x")
        assert caught.value.status == "insufficient_scope"

    @pytest.mark.parametrize(
        ("more", "complaint"),
        [
            ({"exp": None}, "no expiry"),
            ({"exp": NOW_S - 30}, "has expired"),
            ({"exp": 0}, "has expired"),
            ({"exp": str(NOW_S + 60)}, "exp is not a number"),
            ({"exp": True}, "exp is not a number"),
            ({"exp": float("nan")}, "exp is out of range"),
            ({"exp": float("inf")}, "exp is out of range"),
            ({"exp": 10**400}, "exp is out of range"),
            ({"nbf": NOW_S + 31}, "not valid yet"),
            ({"nbf": "x"}, "nbf is not a number"),
            ({"iat": NOW_S + 31}, "issued in the future"),
            ({"iat": NOW_S + 20, "exp": NOW_S + 10}, "issued in the future, or after its expiry"),
            ({"iat": []}, "iat is not a number"),
            ({"iss": None}, "expected.issuer"),
            ({"iss": ISSUER + "/"}, "expected.issuer"),
            ({"iss": [ISSUER]}, "expected.issuer"),
            ({"aud": None}, "expected.audience"),
            ({"aud": "kafk"}, "expected.audience"),
            ({"aud": "kafka other"}, "expected.audience"),
            ({"aud": {AUDIENCE: 1}}, "expected.audience"),
            ({"aud": []}, "expected.audience"),
            ({"sub": None}, "no usable name in the claim 'sub'"),
            ({"sub": ""}, "no usable name"),
            ({"sub": "  "}, "no usable name"),
            ({"sub": 7}, "no usable name"),
            ({"sub": ["ann"]}, "no usable name"),
            ({"sub": "ann\nUser:admin"}, "no usable name"),
            ({"scope": 7}, "scope is neither"),
            ({"scope": [7]}, "scope is neither"),
        ],
    )
    def test_that_are_refused(self, more: dict[str, Any], complaint: str) -> None:
        found = {**claims(now_s=NOW_S), **more}
        found = {name: value for name, value in found.items() if value is not None}
        with pytest.raises(TokenRefused, match=complaint) as caught:
            RULES.check(found, NOW_S * 1000)
        assert "ann" not in str(caught.value)

    def test_within_the_skew_are_accepted(self) -> None:
        assert check(exp=NOW_S - 29, iat=None).lifetime_ms == 1
        assert check(nbf=NOW_S + 30, iat=NOW_S + 30)
        exact = TokenRules(skew_s=0)
        assert check(exact, aud=None, lifetime_s=0.5).lifetime_ms == 500
        with pytest.raises(TokenRefused, match="expired"):
            check(exact, aud=None, lifetime_s=0)

    def test_of_an_audience_are_refused_where_none_is_expected(self) -> None:
        """RFC 7519, 4.1.3; Kafka does the same."""
        with pytest.raises(TokenRefused, match=r"sasl\.oauthbearer\.expected\.audience is not set"):
            check(TokenRules())
        assert check(TokenRules(), aud=None, iss=None)

    def test_that_hold_for_ages_fit_in_the_answer(self) -> None:
        assert check(exp=1e300).lifetime_ms == 10**12


class TestSignatures:
    @pytest.mark.parametrize(
        ("kind", "algorithm"),
        [
            *(("RSA", name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
            ("P-256", "ES256"),
            ("P-384", "ES384"),
            ("Ed25519", "EdDSA"),
        ],
    )
    def test_of_every_accepted_algorithm(self, kind: str, algorithm: str) -> None:
        keys = keys_of(*(public_jwk(one) for one in ("RSA", "P-256", "P-384", "Ed25519")))
        token = signed({"sub": "ann"}, kind, algorithm=algorithm)
        assert keys.claims(token) == {"sub": "ann"}
        head, payload, signature = token.split(".")
        changed = by_hand({}, {"sub": "eve"}).split(".")[1]
        for wrong in (f"{head}.{changed}.{signature}", f"{head}.{payload}.", f"{head}.{payload}.{signature[:-8]}"):
            with pytest.raises(TokenRefused):
                keys.claims(wrong)

    def test_may_come_without_the_name_of_the_key(self) -> None:
        keys = keys_of(public_jwk("RSA", 1), public_jwk("RSA", 2))
        assert keys.claims(signed({"sub": "ann"}, number=2, kid=None))["sub"] == "ann"
        with pytest.raises(UnknownKey):
            keys.claims(signed({"sub": "ann"}, number=3, kid=None))

    def test_by_an_unknown_key_are_told_apart(self) -> None:
        keys = keys_of(public_jwk("RSA", 1))
        with pytest.raises(UnknownKey):
            keys.claims(signed({"sub": "ann"}, number=2))
        with pytest.raises(TokenRefused, match="signature is wrong") as caught:
            keys.claims(signed({"sub": "ann"}, number=2, kid="RSA/1"))
        assert not isinstance(caught.value, UnknownKey)

    @pytest.mark.parametrize(
        "algorithm", ["none", "None", "NONE", "nOnE", "", None, 0, ["RS256"], "HS256", "RS1", "ES256K"]
    )
    def test_by_no_or_another_algorithm_are_refused(self, algorithm: Any) -> None:
        with pytest.raises(TokenRefused, match="not signed, or by an algorithm that is not accepted"):
            keys_of(public_jwk("RSA")).claims(by_hand({"alg": algorithm, "kid": "RSA/0"}, {"sub": "eve"}))

    @pytest.mark.parametrize(
        "encoding", [(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), (Encoding.PEM, PublicFormat.PKCS1)]
    )
    def test_by_the_public_key_as_a_shared_secret_are_refused(self, encoding: tuple[Encoding, PublicFormat]) -> None:
        secret = private_key("RSA", 0).public_key().public_bytes(*encoding)
        head, payload, _ = by_hand({"alg": "HS256", "kid": "RSA/0"}, {"sub": "eve"}).split(".")
        signature = hmac.digest(secret, f"{head}.{payload}".encode(), hashlib.sha256)
        with pytest.raises(TokenRefused):
            keys_of(public_jwk("RSA")).claims(by_hand({"alg": "HS256", "kid": "RSA/0"}, {"sub": "eve"}, signature))

    def test_by_a_key_of_another_kind_are_refused(self) -> None:
        keys = keys_of(public_jwk("RSA", kid="one"), public_jwk("P-256", kid="two"))
        for kind, name, algorithm in (("P-256", "one", "ES256"), ("RSA", "two", "RS256")):
            with pytest.raises(UnknownKey):
                keys.claims(signed({"sub": "eve"}, kind, algorithm=algorithm, kid=name))

    def test_by_an_algorithm_that_the_key_is_not_for_are_refused(self) -> None:
        with pytest.raises(UnknownKey):
            keys_of(public_jwk("RSA", alg="RS256")).claims(signed({"sub": "ann"}, algorithm="PS256"))

    @pytest.mark.parametrize(
        "extra", [{"crit": ["exp"]}, {"crit": ["b64"], "b64": False}, {"b64": True}, {"kid": 7}, {"kid": ["RSA/0"]}]
    )
    def test_with_a_header_that_changes_their_meaning_are_refused(self, extra: dict[str, Any]) -> None:
        with pytest.raises(TokenRefused, match="header cannot be understood"):
            keys_of(public_jwk("RSA")).claims(by_hand({"alg": "RS256", "kid": "RSA/0", **extra}, {"sub": "eve"}, b"x"))

    def test_with_a_key_of_their_own_are_refused(self) -> None:
        """`jwk` and `jku` in a header are where an attacker puts keys: they mean nothing."""
        token = signed({"sub": "eve"}, number=5, jwk=public_jwk("RSA", 5), jku="https://eve.example/keys")
        with pytest.raises(UnknownKey):
            keys_of(public_jwk("RSA")).claims(token)

    @given(
        st.text(max_size=60)
        | st.text("abcAZ09-_.=", max_size=200)
        | st.builds(by_hand, st.binary(), st.binary(), st.binary())
    )
    def test_garbage_is_refused(self, token: str) -> None:
        for read in (keys_of(public_jwk("RSA")).claims, read_unsigned):
            with pytest.raises(TokenRefused):
                read(token)

    @pytest.mark.parametrize("part", [b"[" * 100_000, b"9" * 10_000, b"null", b"[]", b'{"a":', b"\xff"])
    def test_json_that_is_no_object_is_refused(self, part: bytes) -> None:
        with pytest.raises(TokenRefused, match="^the token cannot be read$"):
            read_json(by_hand(part, {}).split(".")[0])


class TestKeySets:
    @pytest.mark.parametrize(
        "document",
        [b"", b"{}", b"[]", b'{"keys": {}}', b"\xff", b"[" * 100_000, b"<html>", b'{"keys": []}', b'{"keys": [1]}'],
    )
    def test_without_a_key_are_refused(self, document: bytes) -> None:
        with pytest.raises(ValueError, match="not a JSON Web Key Set|no key that can verify"):
            SigningKeys(document)

    @pytest.mark.parametrize(
        "key",
        [
            {"kty": "oct", "k": "c2VjcmV0", "kid": "RSA/0", "alg": "HS256"},
            public_jwk("RSA", use="enc"),
            public_jwk("RSA", key_ops=["encrypt"]),
            public_jwk("RSA", alg="HS256"),
            public_jwk("RSA", alg="none"),
            public_jwk("RSA", kid=7),
            public_jwk("RSA", n=None),
            public_jwk("RSA", n="!"),
            public_jwk("RSA-1024"),
            public_jwk("P-256", crv="secp256k1"),
            public_jwk("P-256", x="AAAA"),
        ],
    )
    def test_leave_out_keys_that_are_for_something_else(self, key: dict[str, Any]) -> None:
        assert len(keys_of(key, public_jwk("P-384"))) == 1

    def test_of_private_keys_keep_the_public_parts(self) -> None:
        private = jwt.get_algorithm_by_name("RS256").to_jwk(private_key("RSA", 0), as_dict=True)
        private.pop("key_ops", None)
        assert keys_of({**private, "kid": "RSA/0"}).claims(signed({"sub": "ann"}))["sub"] == "ann"


class TestUnsignedTokens:
    def test_are_read_as_they_were_made(self) -> None:
        assert read_unsigned(make_unsigned({"sub": "ann"})) == {"sub": "ann"}

    def test_may_not_have_a_signature_or_another_algorithm(self) -> None:
        for token in (
            by_hand({"alg": "none"}, {}, b"x"),
            by_hand({"alg": "RS256"}, {}),
            signed({}),
            "a",
            "",
            "..",
            "...",
        ):
            with pytest.raises(TokenRefused):
                read_unsigned(token)
