"""Principals become users, by the rules of Kafka's `KerberosShortNamer`; Kafka's own class is the judge.

Its JVM takes a second to start; random rules and principals go to it in one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from broker.errors import ConfigError
from broker.security.kerberos_rules import KerberosRules
from broker.security.login import LoginRefused
from tests.support.kafka_java import KafkaJava, java_or_give_up
from tests.support.randomness import seeded

REALM = "R.EXAMPLE"
CASES = [
    ("DEFAULT", "ann@R.EXAMPLE", "ann"),
    ("DEFAULT", "kafka/host.r@R.EXAMPLE", "kafka"),
    ("DEFAULT", "ann@ELSEWHERE", None),
    ("DEFAULT", "Ann@R.EXAMPLE", "Ann"),
    (r"RULE:[1:$1](.*)s/^.*$/x/", "ann@ELSEWHERE", "x"),
    (r"RULE:[1:$1@$0](.*@OPS)s/@.*//,DEFAULT", "ann@OPS", "ann"),
    (r"RULE:[1:$1@$0](.*@OPS)s/@.*//,DEFAULT", "bob@R.EXAMPLE", "bob"),
    (r"RULE:[2:$1]", "kafka/host@ELSEWHERE", "kafka"),
    (r"RULE:[2:$2-$1]/U", "kafka/host@ELSEWHERE", "HOST-KAFKA"),
    (r"RULE:[1:$1]/L", "ANN@ELSEWHERE", "ann"),
    (r"RULE:[1:$1](A.*)s/N/m/g/L", "ANNA@ELSEWHERE", "amma"),
    (r"RULE:[1:$1](A.*)s/N/m/L", "ANNA@ELSEWHERE", "amna"),
    (r"RULE:[1:$1]s/(.)(.)/$2$1/", "ann@X", "nan"),
    (r"RULE:[1:$1@$0]", "ann@X", None),
    (r"RULE:[2:$1/$2](.*)s/x/y/", "a/b@X", None),
    (r"RULE:[1:$1]", "a/b/c@X", None),
    (r"RULE:[1:$1]", "ann", None),
    (r"RULE:[1:]", "ann@X", ""),
    (r"RULE:[1:a$1b$1]", "x@X", "axbx"),
    (r"RULE:[2:$1]", "a/@X", "a"),
    (r"RULE:[1:$1]", "@X", ""),
]


@pytest.fixture(scope="module")
def java() -> Iterator[KafkaJava]:
    with java_or_give_up() as started, started.closing():
        yield started


@pytest.mark.parametrize(("rules", "principal", "user"), CASES)
def test_the_first_rule_that_applies_says_it(rules: str, principal: str, user: str | None) -> None:
    assert ours(rules, principal) == user


def test_it_is_what_kafka_says(java: KafkaJava) -> None:
    dice = seeded(4752)
    atoms = ["[1:$1]", "[1:$1@$0]", "[2:$1]", "[2:$2$1$0]", "[1:x$1]", "[2:$1-$2@$0]"]
    matched = ["", "(.*)", "(a.*)", "(.*@X)", "([A-Z]+)", r"(\w*)"]
    replaced = ["", "s/@.*//", "s/a/b/", "s/a/b/g", "s/(.)a/$1$1/g", "s/x*/-/g", r"s/A/\$/", "s/b//g"]
    cased = ["", "/L", "/U", "L", "/"]
    principals = ["ann@X", "aXa@R.EXAMPLE", "a/b@X", "ab/xa@R.EXAMPLE", "a/b/c@X", "AA@X", "a@b@c", "/h@X", "a/@X"]
    rules = ["DEFAULT", "RULE:[3:$1]", "default"]
    rules += ["RULE:" + "".join(map(dice.choice, (atoms, matched, replaced, cased))) for _ in range(200)]
    told = 0
    for first in rules:
        text = f"{first},{dice.choice(rules)}" if dice.random() < 0.3 else first
        for principal in dice.sample(principals, 4):
            expected = kafkas(java, text, principal)
            told += expected is not None
            assert ours(text, principal) == expected, (text, principal)
    assert told > 100
    for text, principal, user in CASES:
        # A ticket has a realm always; a name without one is taken by Kafka as it is.
        assert kafkas(java, text, principal) == (user if "@" in principal else principal)


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("", "expected DEFAULT or RULE"),
        ("default", "expected DEFAULT or RULE"),
        ("RULE:[1:$1](a", "expected DEFAULT or RULE"),
        ("RULE:[1:$1]s/a/b", "expected DEFAULT or RULE"),
        ("RULE:[1:$1]x", "expected DEFAULT or RULE"),
        ("RULE:[:$1]", "expected DEFAULT or RULE"),
        ("RULE:[1:$2]", r"\$2 stands for nothing; there are \$0 to \$1"),
        ("RULE:[1:$]", "stands for nothing"),
        ("RULE:[1:$1](a++)", "is not supported in a pattern"),
        ("RULE:[1:$1]s/a/$1/", "names what the pattern a has not"),
    ],
)
def test_a_rule_that_can_give_no_name_is_refused(rule: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"sasl.kerberos.principal.to.local.rules: .*{complaint}"):
        KerberosRules([rule])


def ours(rules: str, principal: str) -> str | None:
    try:
        return KerberosRules(rules.split(",")).user_of(principal, REALM)
    except (LoginRefused, ConfigError):
        return None


def kafkas(java: KafkaJava, rules: str, principal: str) -> str | None:
    package: Any = java.kafka.common.security.kerberos
    try:
        namer = package.KerberosShortNamer.fromUnparsedRules(REALM, rules.split(","))
        return str(namer.shortName(package.KerberosName.parse(principal)))
    except Py4JJavaError:
        return None
