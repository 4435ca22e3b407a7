"""No page says of an API that it is not served, or of a feature that it is not built, while the table serves it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from kio.schema.index import api_key_map

from broker.api.table import API_TABLE
from tests.support.snippets import pages
from tests.support.source_tree import ROOT

SERVED = {api_key_map[int(api)] for api, *_ in API_TABLE}
ABSENT = re.compile(r"\b(?:not|never|no longer|nor) (?:yet )?(?:served|built|supported|implemented|advertised)\b")
OF_VERSIONS = re.compile(r"\bversions?\b")
FEATURES = {
    "KIP-848": "consumer_group_heartbeat",
    "KIP-932": "share_group_heartbeat",
    "share groups": "share_group_heartbeat",
    "KIP-1071": "streams_group_heartbeat",
    "streams groups": "streams_group_heartbeat",
    "KIP-714": "push_telemetry",
    "client metrics": "push_telemetry",
    "delegation tokens": "create_delegation_token",
    "metadata-quorum": "describe_quorum",
}
"""What prose calls a feature → an API that is served once it is built."""
NAMES = {"".join(word.capitalize() for word in name.split("_")): name for name in api_key_map.values()} | FEATURES


def denied(served: Set[str]) -> Iterator[str]:
    """`page: sentence` of each sentence, or row of a table, that says of something served that it is not."""
    for page in pages():
        for row in page.read_text(encoding="utf-8").split("\n\n"):
            lines = row.splitlines() if row.startswith("|") else [" ".join(row.split())]
            for sentence in (part for line in lines for part in re.split(r"(?<=[.:;]) ", line)):
                named = {name for word, name in NAMES.items() if re.search(rf"\b{word}\b(?! \d)", sentence)}
                if ABSENT.search(sentence) and not OF_VERSIONS.search(sentence) and named & served:
                    yield f"{page.relative_to(ROOT)}: {sentence}"


def test_no_page_says_of_what_is_served_that_it_is_not() -> None:
    assert list(denied(SERVED)) == [], "it is served now: say what it does"


def test_a_page_that_was_forgotten_is_found() -> None:
    """As it will be when streams groups are served."""
    found = list(denied(SERVED | {"streams_group_heartbeat", "describe_quorum"}))
    assert any(sentence.startswith("docs/compatibility.md: ") and "KIP-1071" in sentence for sentence in found)
