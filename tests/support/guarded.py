"""A broker whose ACLs decide: whoever does not log in is a super user, alice has the rights that a test gives her."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.security.acl_types import EVERY_ACL
from tests.support.broker_process import BrokerProcess

ALICE, PASSWORD = "alice", "alice-s3cret"
PRINCIPAL = f"User:{ALICE}"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{_MODULE} required user_{ALICE}="{PASSWORD}";',
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "50",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.check.interval.ms": "86400000",  # tests write records of years ago
}


class Guarded:
    """At one listener super users come in, at the other users log in."""

    listeners: dict[str, str]

    @property
    def super_user(self) -> dict[str, Any]:
        """The properties of a client that may do everything, in librdkafka's names, which ours takes as well."""
        return {"bootstrap.servers": self.listeners["PLAINTEXT"]}

    @property
    def alice(self) -> dict[str, Any]:
        """Those of alice."""
        return {
            "bootstrap.servers": self.listeners["SASL_PLAINTEXT"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": ALICE,
            "sasl.password": PASSWORD,
        }

    def delete_acls(self) -> None:
        with Cluster(self.super_user) as cluster:
            Admin(cluster).delete_acls([EVERY_ACL])


class GuardedBroker(BrokerProcess, Guarded):
    """A standalone broker of ours."""

    def __init__(self, data_dir: Path, more: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, {**_SETTINGS, **(more or {})}, standalone=True)


class ForeignGuarded(Guarded):
    """A Kafka that somebody else started, with the users and the super user of this module and of denying.py."""

    def __init__(self, super_users: str, users: str) -> None:
        self.listeners = {"PLAINTEXT": super_users, "SASL_PLAINTEXT": users}


VARIABLE = "PYKAFKA_TEST_GUARDED_KAFKA"


def foreign_addresses() -> tuple[str, str] | None:
    """What the environment names: where super users come in, and where users log in."""
    found = os.environ.get(VARIABLE)
    if not found:
        return None
    super_users, users = found.split()
    return super_users, users
