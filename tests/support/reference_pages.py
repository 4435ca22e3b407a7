"""The parts of docs/ that are made from the code: options, settings, APIs, metrics, the console.

Each stands in its page between `<!-- table: NAME -->` and `<!-- end of table -->`. `make reference` writes them;
tests/docs/test_reference_pages.py fails while a page differs from the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from broker.client.client_settings import ClientSettings
from broker.config.broker_config import BrokerConfig
from broker.log.log_config import LogConfig
from broker.security.stores import SECURITY
from broker.settings import Setting, read_properties_file, settings_of
from broker.tools.console import commands, summary
from broker.web.collector import FAMILIES
from spark_connector.options.option_table import OPTIONS, WRITE_OPTIONS, Option
from tests.support.console_reference import console
from tests.support.job_rights import job_rights
from tests.support.markdown_table import table
from tests.support.permission_table import open_apis, operations, permissions
from tests.support.protocol_table import protocol
from tests.support.server_properties import FILE as SHIPPED_FILE
from tests.support.source_tree import ROOT

PAGES = sorted([*(ROOT / "docs" / "reference").glob("*.md"), ROOT / "docs" / "how-to" / "rights.md"])
BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n\n).*?(<!-- end of table -->)", re.DOTALL)


def options(declared: Iterable[Option]) -> str:
    rows = ([f"`{row.name}`", row.default or "", row.scope, row.meaning] for row in declared)
    return table(["option", "default", "for", "meaning"], rows)


def settings(cls: type[Any], shipped: Mapping[str, str] = MappingProxyType({})) -> str:
    """The settings of `cls`. `shipped` has what the shipped file sets, which may differ from a default."""
    declared = sorted(settings_of(cls).values(), key=lambda one: one.group == SECURITY)  # the many at the end
    rows = ([f"`{one.name}`", _shown_default(one, shipped), one.doc] for one in declared)
    return table(["key", "default", "meaning"], rows)


def metrics() -> str:
    rows = ([f"`{name}`", kind, ", ".join(labels), doc] for name, kind, labels, doc in FAMILIES.values())
    return table(["metric", "kind", "labels", "meaning"], rows)


def console_commands() -> str:
    rows = ([f"[`pykafka {name}`](#pykafka-{name})", summary(target)] for name, target in commands().items())
    return table(["command", "what it does"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "options": lambda: options(OPTIONS),
    "write-options": lambda: options(WRITE_OPTIONS),
    "broker-settings": lambda: settings(BrokerConfig, read_properties_file(SHIPPED_FILE)),
    "topic-settings": lambda: settings(LogConfig),
    "client-settings": lambda: settings(ClientSettings),
    "commands": console_commands,
    "console": console,
    "metrics": metrics,
    "protocol": protocol,
    "open-apis": open_apis,
    "permissions": permissions,
    "operations": operations,
    "job-rights": job_rights,
}


def names(text: str) -> list[str]:
    """The generated parts that `text` has a place for, in order."""
    return [match["name"] for match in BLOCK.finditer(text)]


def regenerate(text: str) -> str:
    """`text` with every generated part as the code has it. Raises KeyError for an unknown name."""
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match['name']]()}\n{match[3]}", text)


def _shown_default(one: Setting, shipped: Mapping[str, str]) -> str:
    text = one.format(one.default)
    default = f"`{text}`" if text else ""
    return default if shipped.get(one.name, text) == text else f"{default}; shipped file: `{shipped[one.name]}`"


def main() -> None:
    """Write the pages whose generated parts differ from the code."""
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = regenerate(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page.name} brought up to date")


if __name__ == "__main__":
    main()
