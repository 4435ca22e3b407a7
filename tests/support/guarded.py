"""A broker whose ACLs decide: whoever does not log in is a super user, alice has the rights that a test gives her."""

from __future__ import annotations

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
}


class GuardedBroker(BrokerProcess):
    """A standalone broker with an authorizer."""

    def __init__(self, data_dir: Path, more: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, {**_SETTINGS, **(more or {})}, standalone=True)

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
