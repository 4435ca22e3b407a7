"""Names of certificates become users, by the grammar of Kafka's `SslPrincipalMapper`.

The cases are what Kafka's own documentation and tests of KIP-371 say, and what Java's `replaceAll` does.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.security.principal_mapping import NoMatchingRule, PrincipalMapping

DUKE = "CN=Duke, OU=JavaSoft, O=Sun Microsystems, C=US"


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", DUKE, DUKE),
        ("RULE:^CN=(.*?),.*$/$1/", DUKE, "Duke"),
        ("RULE:^CN=(.*?),.*$/$1/L", DUKE, "duke"),
        ("RULE:^CN=(.*?), OU=(.*?),.*$/$1@$2/U", DUKE, "DUKE@JAVASOFT"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?), .*$/other-$1/ ,DEFAULT", DUKE, "other-Duke"),
        ("RULE:^cn=nobody$/x/,DEFAULT", DUKE, DUKE),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", "O=x,cn=Ann.B", "ann.b"),
        (r"RULE:^CN=(.*?)\/(.*?),.*$/$2\/$1/", "CN=kafka/host,O=x", "host/kafka"),
        ("RULE:^CN=(.*)$/$1$4/", "CN=a", "a$4"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        ("RULE:^CN=(.*)$/\\$1/", "CN=a", "$1"),
        ("RULE:^CN=(.*), with a comma$/$1/", "CN=a, with a comma", "a"),
        ("RULE:^CN=(x)?(.*)$/$1$2/", "CN=a", "a"),
        (r"RULE:^CN=(\w+),.*$/$1/,DEFAULT", "CN=Jürgen,O=x", "CN=Jürgen,O=x"),
        (r"RULE:^\QCN=\E(.*)$/$1/", "CN=a", "a"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_says_it(rules: str, name: str, user: str) -> None:
    assert PrincipalMapping(rules).user_of(name) == user


@pytest.mark.parametrize("rules", ["", "RULE:^CN=(.*)$/$1/", "RULE:O=Sun/x/"])
def test_a_name_without_a_rule_is_nobodys(rules: str) -> None:
    with pytest.raises(NoMatchingRule, match="no rule of ssl.principal.mapping.rules applies to CN"):
        PrincipalMapping(rules).user_of("CN2=O=Suns")


@pytest.mark.parametrize(
    "rules",
    [
        *("default", "DEFAULT/L", "RULE:^CN=(.*)$", "RULE:^CN=(.*)$/$1", "RULE:^CN=(.*)$/$1/x", "RULE:(/x/", "a,b"),
        *("RULE:a$/$1/", "RULE:(a)/$x/", "RULE:(a)/$2$3/", r"RULE:\bCN=(.*)/$1/", r"RULE:\p{L}+/x/", "RULE:a++/x/"),
    ],
)
def test_rules_that_are_none_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match="ssl.principal.mapping.rules"):
        PrincipalMapping(rules)


def test_the_setting_is_checked_when_the_broker_starts() -> None:
    with pytest.raises(ConfigError, match="ssl.principal.mapping.rules"):
        BrokerConfig.load(None, {"ssl.principal.mapping.rules": "RULE:^CN=(.*)$"})


@given(st.text(), st.text())
def test_any_name_and_any_text_of_rules(rules: str, name: str) -> None:
    try:
        mapping = PrincipalMapping(rules)
    except ConfigError:
        return
    try:
        assert isinstance(mapping.user_of(name), str)
    except NoMatchingRule:
        assert "DEFAULT" not in rules
