"""The authorizer that a broker's settings ask for: with ACLs or without, and who needs none."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.config.broker_config import BrokerConfig
from broker.config.security_settings import parse_super_users
from broker.net.router import ANONYMOUS
from broker.security.acl_decisions import AclSnapshot
from broker.security.authorizer import Authorizer, DecisionLog

logger = logging.getLogger(__name__)


def make_authorizer(
    config: BrokerConfig, *, is_isolated: bool, later: Callable[[Callable[[], None]], object]
) -> Authorizer:
    """Super users act as brokers, and who brokers log in as. Without an authorizer and without logins, all do who reach
    the listener of the brokers.

    `is_isolated`: the broker cannot connect to others. `later`: as of `DecisionLog`.
    """
    users = set(parse_super_users(config.super_users))
    acls = AclSnapshot() if config.authorizer_class_name else None
    log = DecisionLog(later)
    if is_isolated:
        return Authorizer(users, acls=acls, log=log)
    between = config.inter_broker()
    if between.login is not None and between.login.principal is not None:  # else super.users has its name
        users.add(between.login.principal)
    if between.security.authenticates:
        return Authorizer(users, acls=acls, log=log)
    name = between.security.listener.name
    if acls is None:
        if not config.standalone:  # else there are no other brokers
            logger.info("listener %s does not authenticate: whoever reaches it may act as a broker", name)
        return Authorizer(users, open_listener=name, log=log)
    if not config.standalone and ANONYMOUS not in users:
        logger.warning(
            "listener %s, which brokers use among themselves, does not authenticate: they are %s and need the rights "
            "ClusterAction on the cluster and Describe on all topics, or a listener with a login",
            name,
            ANONYMOUS,
        )
    return Authorizer(users, acls=acls, log=log)
