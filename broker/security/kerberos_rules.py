"""`sasl.kerberos.principal.to.local.rules`: what a broker calls who logs in by Kerberos. Pure.

    RULE:[1:$1@$0](.*@OPS\\.EXAMPLE)s/@.*//,RULE:[2:$1]/L,DEFAULT

Hadoop's auth_to_local rules as Kafka's `KerberosShortNamer` reads them: a rule is for principals with so many
components, makes a text of the realm (`$0`) and the components, and gives that, if it matches the pattern in brackets,
after the replacement. DEFAULT gives the first component of a principal of the default realm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from broker.errors import ConfigError
from broker.patterns.java import JavaPattern, UnsupportedPattern
from broker.patterns.java_replacement import JavaReplacement
from broker.security.login import LoginRefused

_PRINCIPAL: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"(DEFAULT)|RULE:\[(\d+):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU]?)", re.ASCII
)
_PARAMETER: Final = re.compile(r"\$(\d*)", re.ASCII)
_CASES: Final[dict[str, Callable[[str], str]]] = {"L": str.lower, "U": str.upper, "": str}


class _Rule(NamedTuple):
    components: int
    format: str
    pattern: JavaPattern | None
    replacement: JavaReplacement | None
    repeats: bool
    case: str

    def apply(self, parts: Sequence[str]) -> str | None:
        """`parts`: the realm, then the components."""
        if len(parts) - 1 != self.components:
            return None
        base = _PARAMETER.sub(lambda match: parts[int(match[1])], self.format)
        if self.pattern is not None and self.pattern.fullmatch(base) is None:
            return None
        if self.replacement is not None:
            base = self.replacement.replaced(base, only_first=not self.repeats)
        return base


class KerberosRules:
    def __init__(self, rules: Sequence[str]) -> None:
        """Raises ConfigError for what is no rule, and for one that can give no name."""
        self._rules = [_parsed(text) for text in rules]

    @property
    def ask_for_the_default_realm(self) -> bool:
        return None in self._rules

    def user_of(self, principal: str, default_realm: str) -> str:
        """The user's name, without `User:`. Raises LoginRefused for a principal without one."""
        found = _PRINCIPAL.fullmatch(principal)
        if found is None:
            raise LoginRefused(f"{principal} is not a principal of one or two components and a realm")
        first, second, realm = found.groups()
        parts = [realm, first] if second is None else [realm, first, second]
        for rule in self._rules:
            name = (first if realm == default_realm else None) if rule is None else rule.apply(parts)
            if name is None:
                continue
            if "/" in name or "@" in name:
                raise LoginRefused(f"the rules for {principal} end with {name}, which has / or @ in it")
            return name if rule is None else _CASES[rule.case](name)
        raise LoginRefused(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal}")


def _parsed(text: str) -> _Rule | None:
    """None for DEFAULT. Raises ConfigError."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise _refused(text, "expected DEFAULT or RULE:[COMPONENTS:FORMAT](PATTERN)s/PATTERN/REPLACEMENT/g/L")
    default, number, form, pattern, old, new, repeats, case = match.groups()
    if default:
        return None
    components = int(number)
    for parameter in _PARAMETER.finditer(form):
        if not parameter[1] or int(parameter[1]) > components:
            raise _refused(text, f"{parameter[0]} stands for nothing; there are $0 to ${components}")
    try:
        matched = None if pattern is None else JavaPattern(pattern)
        replacement = None if old is None else JavaReplacement(old, new)
    except UnsupportedPattern as error:
        raise _refused(text, str(error)) from None
    return _Rule(components, form, matched, replacement, bool(repeats), case)


def _refused(rule: str, why: str) -> ConfigError:
    return ConfigError(f"sasl.kerberos.principal.to.local.rules: {rule}: {why}")
