"""Asks requests under a name, in several versions, and keeps the answers in a form that two brokers can share.

Ids, times, lengths of records and the names' prefix are made neutral. Error texts are left out.
An answer that never comes is "no answer", a closed connection "closed".
"""

from __future__ import annotations

import datetime
import enum
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import known_versions
from tests.support.raw_requests import LATEST, SERVED, Requests
from tests.support.waiting import eventually

Answers = dict[str, dict[str, Any]]
"""Name of the request → version ("-" for what is no answer of an API) → answer."""
Pick = Callable[[Any], Any]

HERE = Path(__file__).parent
TIMEOUT_S = 60.0
_TEXTS = {"error_message", "batch_index_error_message", "acknowledge_error_message", "throttle_time", "documentation"}
_NUMBERED = re.compile(r"(?<=-7)(as|cfg)\d+")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# The highest version that Kafka 3.8.1 serves, where that is lower than ours.
KAFKA_MOST = {
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 16,
    ApiKey.LIST_OFFSETS: 8,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.API_VERSIONS: 3,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.LIST_TRANSACTIONS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
    ApiKey.WRITE_TXN_MARKERS: 1,
}


def versions(api: ApiKey) -> range:
    """Those that both serve and kio knows: the older ones (broker/protocol/older_messages.py) were not recorded."""
    low, high = SERVED[api]
    return range(max(low, known_versions(api)[0]), min(high, KAFKA_MOST.get(api, high)) + 1)


class Asking:
    """One broker that is asked. `prefix` begins every name of the run, and is "U" in the answers."""

    def __init__(self, bootstrap: str, broker_id: int, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.broker_id = broker_id
        self.prefix = prefix
        self.answers: Answers = {}
        self.requests = Requests(bootstrap, TIMEOUT_S)

    def close(self) -> None:
        self.requests.close()

    def create(self, name: str, partitions: int = 1, **config: str) -> uuid.UUID:
        """A topic that can be used: a KRaft broker hears of it a little later. Config keys with `_` for `.`."""
        topic_id = self.requests.create(name, partitions, **config)

        def is_led() -> bool:
            found = (self.requests.list_offset(name, LATEST, index, version=8) for index in range(partitions))
            return all(one.error_code is ErrorCode.none for one in found)

        eventually(is_led)
        return topic_id

    def note(self, name: str, answer: Any, version: int | None = None) -> None:
        """Keep an answer; the second under a name is "<name> #2"."""
        key = "-" if version is None else str(version)
        times = 1
        while key in self.answers.get(unique := name if times == 1 else f"{name} #{times}", {}):
            times += 1
        self.answers.setdefault(unique, {})[key] = answer

    def ask(
        self, name: str, api: ApiKey, body: Mapping[str, Any], version: int | None = None, pick: Pick | None = None
    ) -> Any:
        """Ask in one version, the highest if none is given; `pick` takes what matters out of the neutral answer.
        Gives the decoded answer, None for none."""
        version = versions(api)[-1] if version is None else version
        try:
            answer = self.requests.ask(api, body, version)
        except (OSError, ConnectionError) as error:
            self.requests.close()
            self.requests = Requests(self.bootstrap, TIMEOUT_S)
            self.note(name, "no answer" if isinstance(error, TimeoutError) else "closed", version)
            return None
        neutral = self.neutral(answer)
        self.note(name, pick(neutral) if pick else neutral, version)
        return answer

    def ask_all(
        self,
        name: str,
        api: ApiKey,
        body: Mapping[str, Any],
        pick: Pick | None = None,
        in_versions: Iterable[int] | None = None,
    ) -> None:
        """Ask in every version."""
        for version in versions(api) if in_versions is None else in_versions:
            self.ask(name, api, body, version, pick)

    def neutral(self, value: Any) -> Any:
        """JSON of an answer, without what differs from run to run."""
        match value:
            case enum.Enum():
                return value.name
            case None | bool() | int() | float():
                return value
            case tuple() if hasattr(value, "_fields"):
                return {name: self.neutral(getattr(value, name)) for name in value._fields if name not in _TEXTS}
            case tuple() | list():
                return [self.neutral(item) for item in value]
            case uuid.UUID():
                return "uuid0" if value.int == 0 else "uuid"
            case bytes() | bytearray() | memoryview():
                return f"{len(value)} bytes"
            case datetime.timedelta():
                return value.total_seconds()
            case datetime.datetime():
                return "time"
        return _UUID.sub("UUID", _NUMBERED.sub(r"\1", str(value).replace(self.prefix, "U")))


def read_answers(area: str) -> Answers:
    """What was recorded: equal answers of several versions stand there once."""
    stored = json.loads((HERE / f"{area}.json").read_text(encoding="utf-8"))
    return {
        name: {version: answer for named, answer in answers.items() for version in named.split(",")}
        for name, answers in stored.items()
    }


def write_answers(area: str, answers: Answers) -> None:
    """One line per request."""
    lines = []
    for name, by_version in answers.items():
        merged: list[tuple[list[str], Any]] = []
        for version, answer in by_version.items():
            same = next((entry for entry in merged if entry[1] == answer), None)
            if same is None:
                merged.append(([version], answer))
            else:
                same[0].append(version)
        text = json.dumps({",".join(named): answer for named, answer in merged}, sort_keys=True, separators=(",", ":"))
        lines.append(f"{json.dumps(name)}: {text}")
    (HERE / f"{area}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
