"""The pages of services: Amazon's policy grants what jobs need, and the pages name options and releases as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest
from moto.iam.policy_validation import IAMPolicyDocumentValidator

from broker.security.acl_types import AclOperation, AclResourceType
from tests.support.job_rights import JOBS, Right
from tests.support.snippets import snippets
from tests.support.source_tree import ROOT

HOW_TO = ROOT / "docs" / "how-to"
PAGES = ["amazon-msk", "event-hubs", "confluent-cloud", "google-managed-kafka"]
LEFT_OUT = ("mirror", "console", "bad records", "verify")
"""Jobs whose rights the policy of the page has not."""

_O, _R = AclOperation, AclResourceType
MSK_ACTIONS = {
    (_O.DESCRIBE, _R.CLUSTER): "DescribeCluster",
    (_O.DESCRIBE_CONFIGS, _R.CLUSTER): "DescribeClusterDynamicConfiguration",
    (_O.DESCRIBE, _R.TOPIC): "DescribeTopic",
    (_O.READ, _R.TOPIC): "ReadData",
    (_O.WRITE, _R.TOPIC): "WriteData",
    (_O.DESCRIBE, _R.GROUP): "DescribeGroup",
    (_O.READ, _R.GROUP): "AlterGroup",
    (_O.WRITE, _R.TRANSACTIONAL_ID): "AlterTransactionalId",
}
"""Kafka's rights as IAM's actions: the MSK developer guide, "Semantics of IAM authorization policy actions"."""
REQUIRED = {
    "ReadData": {"DescribeTopic", "AlterGroup"},
    "WriteData": {"DescribeTopic"},
    "AlterGroup": {"DescribeGroup"},
    "WriteDataIdempotently": {"WriteData"},
    "AlterTransactionalId": {"DescribeTransactionalId", "WriteData"},
    "DescribeClusterDynamicConfiguration": set(),
}
"""Action → those that the same table asks for beside it, and beside Connect."""
NAMES = {"topic": "flights", "sink": "flights-clean", "group": "nightly", "prefix": "etl-7"}


def policy() -> dict[str, Any]:
    (text,) = (one.text for one in snippets(HOW_TO / "amazon-msk.md") if one.language == "json")
    found: dict[str, Any] = json.loads(text)
    return found


def granted(action: str, kind: str, name: str) -> bool:
    arn = f"arn:aws:kafka:eu-west-1:123456789012:{kind}/lake/5f3c-1" + (f"/{name}" if name else "")
    return any(
        f"kafka-cluster:{action}" in one["Action"] and fnmatchcase(arn, one["Resource"])
        for one in policy()["Statement"]
    )


def rights() -> Iterator[Right]:
    for job in JOBS:
        if not any(word in job.name for word in LEFT_OUT):
            yield from job.rights


def test_amazons_policy_is_one() -> None:
    IAMPolicyDocumentValidator(json.dumps(policy())).validate()
    sids = [one["Sid"] for one in policy()["Statement"]]
    assert len({*sids}) == len(sids)


def test_amazons_policy_grants_what_each_job_needs_and_what_its_actions_ask_for() -> None:
    found = set(rights())
    assert len(found) > 8
    for right in found:
        kind = right.place.type.title.lower().replace("_", "-")
        kind = "transactional-id" if kind.startswith("transactional") else kind
        name = "" if kind == "cluster" else NAMES[right.place.key]
        action = MSK_ACTIONS[right.operation, right.place.type]
        assert granted(action, kind, name), f"{right}: {action} on {kind} {name}"
    actions = {one.removeprefix("kafka-cluster:") for statement in policy()["Statement"] for one in statement["Action"]}
    assert "Connect" in actions
    for action in actions:
        assert REQUIRED.get(action, set()) <= actions, action


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_a_service_says_where_it_was_checked_and_what_goes_wrong(page: str) -> None:
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8")
    (checked,) = re.findall(r"^\*(Checked against [^*]*)\*$", text, re.MULTILINE)
    assert re.search(r"not run on|run\s+neither on", checked)
    assert "## What goes wrong\n\n| symptom | cause | what to set |\n" in text
    assert "executors.md" in text
