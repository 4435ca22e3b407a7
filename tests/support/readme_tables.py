"""The tables of README.md and docs/protocol.md that are made from the code: options, settings, APIs, commands.

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. `python -m tests.support.readme_tables`
(`make readme`) writes them anew; tests/test_readme.py and tests/api/test_protocol_doc.py fail while they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from broker.api.table import API_TABLE
from broker.client.client_settings import ClientSettings
from broker.config.broker_config import BrokerConfig
from broker.log.log_config import LogConfig
from broker.security.store_settings import SECURITY
from broker.settings import Setting, settings_of
from broker.tools.main import commands, summary
from spark_connector.options.option_table import OPTIONS, WRITE_OPTIONS, Option
from tests.support.protocol_table import PROTOCOL, protocol
from tests.support.source_tree import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def options(declared: Iterable[Option] = OPTIONS) -> str:
    rows = ([f"`{row.name}`", row.default or "", row.scope, row.meaning] for row in declared)
    return _table(["option", "default", "for", "meaning"], rows)


def settings(cls: type[Any]) -> str:
    declared = sorted(settings_of(cls).values(), key=lambda one: one.group == SECURITY)  # the many at the end
    rows = ([f"`{one.name}`", _shown_default(one), one.doc] for one in declared)
    return _table(["key", "default", "meaning"], rows)


def apis() -> str:
    rows = ([_camel_case(api.name), int(api), f"{low}-{high}"] for api, low, high, _ in API_TABLE)
    return _table(["API", "key", "versions"], rows)


def console_commands() -> str:
    rows = ([f"`pykafka {name}`", summary(target)] for name, target in commands().items())
    return _table(["command", "what it does"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "options": options,
    "write-options": lambda: options(WRITE_OPTIONS),
    "broker-settings": lambda: settings(BrokerConfig),
    "topic-settings": lambda: settings(LogConfig),
    "client-settings": lambda: settings(ClientSettings),
    "apis": apis,
    "commands": console_commands,
}


def names(text: str) -> list[str]:
    """The tables that `text` has a place for, in order."""
    return [match["name"] for match in BLOCK.finditer(text)]


def regenerate(text: str) -> str:
    """`text` with every table as the code has it. Raises KeyError for a table no one makes."""
    tables = {**TABLES, "protocol": protocol}
    return BLOCK.sub(lambda match: match[1] + tables[match["name"]]() + match[3], text)


def _table(head: list[str], rows: Iterable[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _shown_default(one: Setting) -> str:
    text = one.format(one.default)
    return f"`{text}`" if text else ""


def _camel_case(name: str) -> str:
    """`API_VERSIONS` → `ApiVersions`."""
    return "".join(word.capitalize() for word in name.split("_"))


def main() -> None:
    """Write README.md and docs/protocol.md anew where their tables differ from the code."""
    for file in (README, PROTOCOL):
        before = file.read_text(encoding="utf-8")
        after = regenerate(before)
        if after != before:
            file.write_text(after, encoding="utf-8")
            print(f"{file.name} brought up to date")


if __name__ == "__main__":
    main()
