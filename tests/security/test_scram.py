"""SCRAM: RFC 7677's example, another implementation on either side, and messages of an attacker."""

from __future__ import annotations

import base64

import pytest
import scramp

from broker.security.login import LoginRefused
from broker.security.scram import ScramClient, ScramCredential, ScramMechanism, ScramServer

NAMES = ["bob", "a=b", "a,b", "ünicode", "=2C", "n=x,r=y"]
each_mechanism = pytest.mark.parametrize("mechanism", list(ScramMechanism), ids=lambda one: one.value)


def server_for(mechanism: ScramMechanism, user: str, password: str) -> ScramServer:
    credential = ScramCredential.make(mechanism, password)
    return ScramServer(mechanism, {user: credential}.get)


@each_mechanism
@pytest.mark.parametrize("user", NAMES)
def test_both_sides_agree(mechanism: ScramMechanism, user: str) -> None:
    client, server = ScramClient(mechanism, user, "pässword"), server_for(mechanism, user, "pässword")
    client.verify(server.final(client.final(server.first(client.first()))))
    assert server.user == user


@each_mechanism
def test_the_server_takes_another_implementations_client(mechanism: ScramMechanism) -> None:
    server = server_for(mechanism, "bob", "pencil")
    client = scramp.ScramClient([mechanism.value], "bob", "pencil")
    client.set_server_first(server.first(client.get_client_first().encode()).decode())
    client.set_server_final(server.final(client.get_client_final().encode()).decode())
    assert server.user == "bob"


@each_mechanism
def test_the_client_takes_another_implementations_server(mechanism: ScramMechanism) -> None:
    theirs = scramp.ScramMechanism(mechanism.value)
    information = theirs.make_auth_info("pencil", iteration_count=4096)
    server = theirs.make_server(lambda user: information)
    client = ScramClient(mechanism, "bob", "pencil")
    server.set_client_first(client.first().decode())
    server.set_client_final(client.final(server.get_server_first().encode()).decode())
    client.verify(server.get_server_final().encode())


def test_the_keys_are_those_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    mechanism = ScramMechanism.SCRAM_SHA_256
    credential = ScramCredential.make(mechanism, "pencil", 4096, salt)
    without_proof = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    signed = (
        "n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        f"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,{without_proof}"
    )
    signature = mechanism.hmac(credential.server_key, signed.encode())
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@each_mechanism
def test_a_credential_is_kept_in_kafkas_form_and_never_shown(mechanism: ScramMechanism) -> None:
    made = ScramCredential.make(mechanism, "secret", 8192)
    text = made.encode()
    assert [part.partition("=")[0] for part in text.split(",")] == ["salt", "stored_key", "server_key", "iterations"]
    assert ScramCredential.decode(text) == made
    assert repr(made) == "ScramCredential(iterations=8192)"


@pytest.mark.parametrize("text", ["", "salt=x", "salt=%,stored_key=YQ==,server_key=YQ==,iterations=1", "iterations=1"])
def test_a_credential_that_cannot_be_read_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="^not a SCRAM credential$"):
        ScramCredential.decode(text)


class TestAnUnknownUser:
    """An unknown user gets the same messages, in the same steps, as one with a wrong password."""

    @each_mechanism
    def test_sees_a_challenge_that_stays_the_same(self, mechanism: ScramMechanism) -> None:
        def challenge(user: str) -> dict[str, str]:
            client = ScramClient(mechanism, user, "x")
            text = server_for(mechanism, "bob", "pencil").first(client.first()).decode()
            return dict(part.partition("=")[::2] for part in text.split(","))

        known, unknown = challenge("bob"), challenge("eve")
        assert (known["i"], len(known["s"])) == (unknown["i"], len(unknown["s"]))
        assert unknown["s"] == challenge("eve")["s"]
        assert unknown["s"] != challenge("eva")["s"]

    @each_mechanism
    def test_is_refused_at_the_end_in_the_same_words(self, mechanism: ScramMechanism) -> None:
        said = set()
        for user, password in (("eve", "pencil"), ("bob", "wrong")):
            client, server = ScramClient(mechanism, user, password), server_for(mechanism, "bob", "pencil")
            last = client.final(server.first(client.first()))
            with pytest.raises(LoginRefused) as refused:
                server.final(last)
            said.add(str(refused.value))
        assert said == {"wrong user or password"}


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=bob,r=x",
        b"n,,r=x",
        b"n,,n=bob",
        b"n,a=eve,n=bob,r=x",
        b"n,,n=,r=x",
        b"n,,m=1,n=bob,r=x",
        b"n,,n=bob,r=x,tokenauth=true",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    with pytest.raises(LoginRefused):
        server_for(ScramMechanism.SCRAM_SHA_256, "bob", "pencil").first(first)


class TestARogueServer:
    def test_cannot_answer_without_the_keys(self) -> None:
        client = ScramClient(ScramMechanism.SCRAM_SHA_256, "bob", "pencil")
        server = server_for(ScramMechanism.SCRAM_SHA_256, "bob", "another")
        client.final(server.first(client.first()))
        for answer in (b"", b"v=", b"v=AAAA", b"v=%", b"e=other-error", b"\xff"):
            with pytest.raises(LoginRefused):
                client.verify(answer)

    @pytest.mark.parametrize("iterations", ["1", "4095", "99999999999", "-1", "x"])
    def test_cannot_weaken_or_exhaust_the_client(self, iterations: str) -> None:
        client = ScramClient(ScramMechanism.SCRAM_SHA_256, "bob", "pencil")
        nonce = client.first().decode().rpartition("r=")[2]
        with pytest.raises(LoginRefused):
            client.final(f"r={nonce}more,s=c2FsdA==,i={iterations}".encode())

    def test_must_use_our_nonce(self) -> None:
        client = ScramClient(ScramMechanism.SCRAM_SHA_256, "bob", "pencil")
        with pytest.raises(LoginRefused):
            client.final(b"r=another,s=c2FsdA==,i=4096")
