"""A broker that denies all that no ACL allows, with users who have no rights yet: for tests of what a job needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.security.acl_types import AccessControlEntry, Acl
from tests.support.broker_process import BrokerProcess
from tests.support.job_rights import Right

PASSWORD = "s3cret"
_USERS = 120
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class DenyingBroker(BrokerProcess):
    """Standalone. Whoever comes through the PLAINTEXT listener is a super user."""

    def __init__(self, data_dir: Path) -> None:
        users = " ".join(f'user_etl{number}="{PASSWORD}"' for number in range(_USERS))
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_MODULE} {users};",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
            "group.initial.rebalance.delay.ms": "50",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
        }
        super().__init__(data_dir, settings, standalone=True)
        self._numbers = itertools.count()

    def user(self, rights: Iterable[Right], names: Mapping[str, str]) -> str:
        """A user who nobody has been yet, with exactly these rights; nothing that a client has cached is theirs."""
        user = f"etl{next(self._numbers)}"
        acls = [
            Acl(right.place.pattern_of(names), AccessControlEntry(f"User:{user}", right.operation)) for right in rights
        ]
        with Cluster(self.listeners["PLAINTEXT"]) as cluster:
            Admin(cluster).create_acls(acls)
        return user

    def properties(self, user: str) -> dict[str, str]:
        """A client's."""
        return {
            "bootstrap.servers": self.listeners["SASL_PLAINTEXT"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    def options(self, user: str) -> dict[str, str]:
        """The same for Spark."""
        return {f"kafka.{name}": value for name, value in self.properties(user).items()}
