"""`sasl.jaas.config` as Java reads it, and errors that do not show its text."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from broker.security.jaas import LoginModule, parse_jaas

PACKAGE = "org.apache.kafka.common.security"


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (
            f'{PACKAGE}.plain.PlainLoginModule required username="u" password="p;=, \'";',
            "PlainLoginModule",
            {"username": "u", "password": "p;=, '"},
        ),
        (f"{PACKAGE}.scram.ScramLoginModule required;", "ScramLoginModule", {}),
        (
            r'a.B REQUIRED x = "q\"uo\\te" y=bare z=' + "'single' ;\n",
            "B",
            {"x": 'q"uo\\te', "y": "bare", "z": "single"},
        ),
    ],
)
def test_a_module_is_read(text: str, name: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == LoginModule(name, options)


def test_users_are_the_options_that_say_so() -> None:
    module = parse_jaas('PlainLoginModule required username="a" user_alice="x" user_a_b="y";')
    assert module.users == {"alice": "x", "a_b": "y"}
    assert repr(module) == "LoginModule(name='PlainLoginModule')"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3cret",
        'PlainLoginModule required password="s3cret"',
        'PlainLoginModule password="s3cret";',
        'PlainLoginModule required password="s3cret;',
        "PlainLoginModule required password s3cret;",
        'PlainLoginModule required password="s3cret"; Other required;',
    ],
)
def test_what_cannot_be_read_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^listener\.x\.jaas: expected ") as caught:
        parse_jaas(text, "listener.x.jaas")
    assert "s3cret" not in str(caught.value)
