"""Clients that log in by PLAIN, and the settings of brokers that know them and decide by ACLs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.config.security_settings import ACL_AUTHORIZER
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.sasl_login import sasl_login
from broker.security.acl_types import (
    AccessControlEntry,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.security.plain import PlainLogin
from tests.support.raw_requests import Requests

ROOT = "root"
"""The super user, which brokers are among themselves."""


def acl_settings(*users: str) -> dict[str, str]:
    """Of a broker with one listener, on which `users` and ROOT log in; each one's password is `<name>-s3cret`."""
    passwords = " ".join(f'user_{name}="{name}-s3cret"' for name in (ROOT, *users))
    module = f'a.PlainLoginModule required username="{ROOT}" password="{ROOT}-s3cret" {passwords};'
    return {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": module,
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": f"User:{ROOT}",
    }


class LoggedIn(Requests):
    """A socket to a broker, after the login of `user`."""

    def __init__(self, bootstrap: str, user: str = ROOT, timeout_s: float = 30.0) -> None:
        super().__init__(bootstrap, timeout_s)
        login = PlainLogin("PLAIN", user, f"{user}-s3cret")
        steps = sasl_login(login, login.begin(""), bootstrap)
        try:
            api, body = next(steps)
            while True:
                api, body = steps.send(self.ask(api, body, 1))
        except StopIteration:
            pass
        except BaseException:
            self.close()
            raise

    # --- ACLs

    def allow(self, user: str, *operations: AclOperation, **pattern: Any) -> None:
        """`topic=`, `group=` or `transactional_id=`: a name; ending in `*` a prefix."""
        self._create_acls(_acls(user, operations, AclPermission.ALLOW, pattern))

    def revoke(self, user: str, *operations: AclOperation, **pattern: Any) -> None:
        """Delete what `allow` created."""
        filters = [
            {
                "resource_type_filter": one.type,
                "resource_name_filter": one.name,
                "pattern_type_filter": one.pattern,
                "principal_filter": entry.principal,
                "host_filter": entry.host,
                "operation": entry.operation,
                "permission_type": entry.permission,
            }
            for one, entry in _acls(user, operations, AclPermission.ALLOW, pattern)
        ]
        for result in self.ask(ApiKey.DELETE_ACLS, {"filters": filters}).filter_results:
            assert result.error_code is ErrorCode.none, result
            assert [one.error_code for one in result.matching_acls] == [ErrorCode.none], result

    def acls(self) -> set[str]:
        """All ACLs."""
        every = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        body = {**every, "resource_name_filter": None, "principal_filter": None, "host_filter": None}
        answer = self.ask(ApiKey.DESCRIBE_ACLS, body)
        assert answer.error_code is ErrorCode.none, answer
        return {
            f"{r.resource_type} {r.resource_name} {r.pattern_type} {acl}" for r in answer.resources for acl in r.acls
        }

    def _create_acls(self, acls: Iterable[tuple[ResourcePattern, AccessControlEntry]]) -> None:
        creations = [
            {
                "resource_type": pattern.type,
                "resource_name": pattern.name,
                "resource_pattern_type": pattern.pattern,
                "principal": entry.principal,
                "host": entry.host,
                "operation": entry.operation,
                "permission_type": entry.permission,
            }
            for pattern, entry in acls
        ]
        for result in self.ask(ApiKey.CREATE_ACLS, {"creations": creations}).results:
            assert result.error_code is ErrorCode.none, result


def _acls(
    user: str, operations: Iterable[AclOperation], permission: AclPermission, named: Mapping[str, str]
) -> list[tuple[ResourcePattern, AccessControlEntry]]:
    found = []
    for key, name in named.items():
        kind = PatternType.PREFIXED if len(name) > 1 and name.endswith("*") else PatternType.LITERAL
        pattern = ResourcePattern(AclResourceType[key.upper()], name.rstrip("*") or "*", kind)
        found += [(pattern, AccessControlEntry(f"User:{user}", one, permission)) for one in operations]
    return found
