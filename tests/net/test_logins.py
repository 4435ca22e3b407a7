"""Every message of every SASL mechanism, from both sides: whatever is sent, it is a login or a refused one."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.listener import Listener
from broker.config.security_settings import ListenerSecurity, SecuritySettings
from broker.errors import AuthenticationFailed, BrokerError, ErrorCode
from broker.net.sasl import SaslSession
from broker.protocol.sasl_login import sasl_login
from broker.security.access_token import TokenRules, make_unsigned, read_unsigned
from broker.security.login import Login, LoginRefused
from broker.security.mechanisms import OAUTHBEARER
from broker.security.oauthbearer import TokenLogin, client_first
from broker.security.password_login import password_login
from broker.security.scram import ScramClient, ScramCredential, ScramMechanism
from broker.security.token_providers.provider_table import find_provider
from broker.security.token_source import TokenSource

USER, PASSWORD = "alice", "pässword"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
SCRAM = MECHANISMS[1:3]
CREDENTIALS = {one: ScramCredential.make(ScramMechanism(one), PASSWORD) for one in SCRAM}
NOW_MS = 1_700_000_000_000
DIGITS = "9" * 5000

TOKENS = {
    "not ASCII": "ü" * 44,
    "surrogate": b"\xed\xa0\x80",
    "no base64": "*",
    "short base64": "QQ",
    "padding only": "====",
    "empty": "",
    "a null": "\0",
    "digits": DIGITS,
    "long": "A" * 100_000,
}


def session(mechanism: str) -> SaslSession:
    """A login that has begun."""
    security = ListenerSecurity(
        Listener("SASL_PLAINTEXT", "localhost", 9092, "SASL_PLAINTEXT"),
        dataclasses.replace(SecuritySettings(), sasl_enabled_mechanisms=MECHANISMS),
        {USER: PASSWORD},
    )

    async def verify(token: str) -> Any:
        return TokenRules().check(read_unsigned(token), NOW_MS)

    made = SaslSession(security, lambda of, user: CREDENTIALS[of.value] if user == USER else None, verify)
    assert made.start(mechanism, raw=False) is ErrorCode.none
    return made


def step(login: SaslSession, message: bytes) -> bytes | None:
    """The answer, or None for a refusal, after which nothing goes on."""
    try:
        answer = asyncio.run(login.step(message))
    except BrokerError as error:
        refused: BrokerError | None = error
        answer = None
    else:
        refused = None
    assert login.failed == bool(login.failure) == (refused is not None)
    assert refused is None or refused.code is ErrorCode.sasl_authentication_failed
    return answer


def right_message(mechanism: str) -> bytes:
    if mechanism == "PLAIN":
        return f"\0{USER}\0{PASSWORD}".encode()
    if mechanism == OAUTHBEARER:
        return client_first(make_unsigned({"sub": USER, "exp": NOW_MS // 1000 + 60}), {})
    return ScramClient(ScramMechanism(mechanism), USER, PASSWORD).first()


def spoiled(message: bytes, start: int, end: int, instead: bytes) -> bytes:
    """The message with other bytes between two of its places."""
    first, last = sorted(at % (len(message) + 1) for at in (start, end))
    return message[:first] + instead + message[last:]


places = st.integers(0, 500)
pieces = (
    st.binary(max_size=20)
    | st.text(max_size=20).map(str.encode)
    | st.sampled_from([DIGITS.encode(), b"=", b",", b"\0"])
)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_right_message_is_taken(mechanism: str) -> None:
    login = session(mechanism)
    assert step(login, right_message(mechanism)) is not None
    assert login.done == (mechanism not in SCRAM)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(
    messages=st.lists(
        st.binary(max_size=200) | st.tuples(st.booleans(), places, places, st.just(b"") | pieces), max_size=5
    )
    | st.tuples(st.just((True, 0, 0, b"")), st.tuples(st.just(False), places, places, pieces)).map(list)
)
def test_messages_in_any_order_log_in_or_are_refused(
    mechanism: str, messages: list[bytes | tuple[bool, int, int, bytes]]
) -> None:
    """Each is any bytes, or the first or the second message of a right login with a part replaced."""
    exchange = session(mechanism)._exchange
    client, answer = ScramClient(ScramMechanism("SCRAM-SHA-256"), USER, PASSWORD), b""
    if mechanism in SCRAM:
        client = ScramClient(ScramMechanism(mechanism), USER, PASSWORD)
    for message in messages:
        if isinstance(message, tuple):
            is_first, start, end, instead = message
            first = client.first() if mechanism in SCRAM else right_message(mechanism)
            message = spoiled(first if is_first else second_to(client, answer), start, end, instead)
        try:
            stepped = exchange.step(message)
            answer = stepped if isinstance(stepped, bytes) else asyncio.run(_awaited(stepped))
        except LoginRefused:  # nothing else, though `SaslSession` would catch more
            assert not exchange.complete
            continue
        if exchange.complete:
            assert exchange.user == USER
            break


async def _awaited(answer: Awaitable[bytes]) -> bytes:
    return await answer


def second_to(client: ScramClient, answer: bytes) -> bytes:
    """The right proof if it is the answer to this client, else the answer."""
    try:
        return client.final(answer)
    except LoginRefused:
        return answer or b"\x01"


def second_message(mechanism: str, login: SaslSession) -> bytes:
    """The right proof, after the right first message."""
    client = ScramClient(ScramMechanism(mechanism), USER, PASSWORD)
    answer = step(login, client.first())
    assert answer is not None
    return client.final(answer)


@pytest.mark.parametrize("mechanism", SCRAM)
@given(start=places, end=places, instead=pieces)
def test_a_spoiled_proof_is_refused(mechanism: str, start: int, end: int, instead: bytes) -> None:
    login = session(mechanism)
    right = second_message(mechanism, login)
    wrong = spoiled(right, start, end, instead)
    assert (step(login, wrong) is not None) == login.done
    assert not login.done or base64.b64decode(wrong.rpartition(b"p=")[2]) == base64.b64decode(
        right.rpartition(b"p=")[2]
    )


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("proof", TOKENS.values(), ids=TOKENS)
def test_a_proof_that_is_none_is_refused(mechanism: str, proof: str | bytes) -> None:
    login = session(mechanism)
    begin, mark, _ = second_message(mechanism, login).rpartition(b",p=")
    assert step(login, begin + mark + (proof if isinstance(proof, bytes) else proof.encode())) is None


@given(
    claims=st.dictionaries(
        st.sampled_from(["sub", "exp", "nbf", "iat", "aud", "scope", "iss"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**4000),
            lambda of: st.lists(of, max_size=3),
        ),
    )
)
def test_a_token_with_any_claims_is_taken_or_refused(claims: Mapping[str, Any]) -> None:
    login = session(OAUTHBEARER)
    step(login, client_first(make_unsigned(claims), {}))  # a refusal is told first, and acknowledged then
    step(login, b"\x01") if not login.done else None


@pytest.mark.parametrize("part", [b'{"alg":"none","x":' + DIGITS.encode() + b"}", b"[" * 100_000, b"\xff", b"1", b"{"])
def test_a_token_that_cannot_be_read_is_refused(part: bytes) -> None:
    text = base64.urlsafe_b64encode(part).rstrip(b"=").decode()
    for token in (f"{text}.{text}.", f"{text}..", make_unsigned({}).split(".")[0] + f".{text}."):
        login = session(OAUTHBEARER)
        answer = step(login, client_first(token, {}))
        assert answer is None or json.loads(answer)["status"] == "invalid_token"
        assert not login.done


# --- the side that logs in


@dataclasses.dataclass
class Answer:
    """What a broker answers, in any of the three requests."""

    auth_bytes: bytes
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    mechanisms: tuple[str, ...] = MECHANISMS
    session_lifetime: int = 0


def log_in(mechanism: str, answer_to: Callable[[int, bytes], bytes]) -> str:
    """A login with a broker that answers so to the number of a message and the message. Returns why it failed."""
    login: Login = password_login(mechanism, USER, PASSWORD)
    if mechanism == OAUTHBEARER:
        login = TokenLogin(
            mechanism, USER, TokenSource(find_provider("unsecured"), {"unsecuredLoginStringClaim_sub": USER})
        )
    talk = sasl_login(login, login.begin("broker"), "broker:9092")
    next(talk)
    try:
        asked = talk.send(Answer(b""))
        for number in range(10):
            asked = talk.send(Answer(answer_to(number, asked[1]["auth_bytes"])))
    except StopIteration:
        return ""
    except AuthenticationFailed as error:
        told = str(error)
        assert PASSWORD not in told
        assert told.isprintable()
        assert len(told) < 400
        return told
    raise AssertionError("the login never ends")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(answers=st.lists(st.binary(max_size=100), min_size=3, max_size=3))
def test_any_answer_of_a_broker_ends_the_login(mechanism: str, answers: list[bytes]) -> None:
    refusal = log_in(mechanism, lambda number, _: answers[number])
    assert refusal or mechanism not in SCRAM


@pytest.mark.parametrize("mechanism", SCRAM)
@given(where=st.integers(0, 1), start=places, end=places, instead=pieces)
def test_a_spoiled_answer_ends_the_login(mechanism: str, where: int, start: int, end: int, instead: bytes) -> None:
    login = session(mechanism)

    def answer_to(number: int, message: bytes) -> bytes:
        right = step(login, message) or b""
        return spoiled(right, start, end, instead) if number == where else right

    log_in(mechanism, answer_to)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    "iterations", [DIGITS, "0", "1", "-4096", "4096.0", "1000001", "999999999", "٤٠٩٦", "", "4_096", " 4096", "1e4"]
)
def test_iterations_that_are_no_number_or_not_safe_are_refused(mechanism: str, iterations: str) -> None:
    def answer_to(number: int, message: bytes) -> bytes:
        nonce = message.decode().partition("r=")[2]
        return f"r={nonce}x,s=QUJD,i={iterations}".encode()

    assert log_in(mechanism, answer_to)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("salt", [one for name, one in TOKENS.items() if name not in ("digits", "long", "surrogate")])
def test_a_salt_that_is_none_is_refused(mechanism: str, salt: str) -> None:
    assert log_in(mechanism, lambda _, message: b"r=" + message.partition(b"r=")[2] + f"x,s={salt},i=4096".encode())


def test_what_a_broker_says_is_shown_in_one_short_line() -> None:
    assert "other-error" in log_in(SCRAM[0], lambda *_: b"e=other-error\n\x1b[2J" + b"x" * 10_000)
