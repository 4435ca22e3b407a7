"""The parts of docs/ that are made from the code: options, settings, APIs, metrics, the console.

Each stands in its page between `<!-- table: NAME -->` and `<!-- end of table -->`. `make reference` writes them;
tests/docs/test_reference_pages.py fails while a page differs from the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import typer.main

from broker.api.table import API_TABLE
from broker.client.client_settings import ClientSettings
from broker.config.broker_config import BrokerConfig
from broker.log.log_config import LogConfig
from broker.protocol.permissions import OPEN_APIS, PERMISSIONS, Permission
from broker.security.acl_types import SUPPORTED_OPERATIONS
from broker.security.stores import SECURITY
from broker.settings import Setting, read_properties_file, settings_of
from broker.tools.console import build, commands, summary
from broker.tools.run_broker import CONF
from broker.web.families import FAMILIES
from spark_connector.options.option import Option
from spark_connector.options.option_table import OPTIONS
from spark_connector.options.write_option_table import WRITE_OPTIONS
from tests.support.broker_profiles import needs_table, services_table, sources_table
from tests.support.job_rights import job_rights
from tests.support.load_arguments import PAGE as LOAD
from tests.support.load_arguments import load_arguments, written
from tests.support.login_uses import logins
from tests.support.markdown_table import table
from tests.support.protocol_table import protocol
from tests.support.source_tree import ROOT
from tests.support.typed_columns import typed_columns

# --- The console's reference page, made from the commands themselves: usage, help and options of each.

_TITLES = {"Example:", "Examples:"}


def console() -> str:
    """A section for each command of `pykafka`, in the order of its help."""
    return "\n".join(section for name in commands() for section in _sections(name))


def _sections(name: str) -> Iterator[str]:
    root: Any = typer.main.get_command(build([name]))
    context = root.make_context("pykafka", [name], resilient_parsing=True)
    yield from _section(root.get_command(context, name), f"pykafka {name}", level=2)


def _section(command: Any, path: str, level: int) -> Iterator[str]:
    """The command's own text, then those of its sub-commands."""
    context = command.context_class(command, info_name=path)
    parts = [f"{'#' * level} `{path}`", _prose(command.help)]
    children = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        parts += [f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```", _parameters(command)]
    yield "\n\n".join(part for part in parts if part) + "\n"
    for name, child in children.items():
        if not child.hidden:
            yield from _section(child, f"{path} {name}", level + 1)


def _prose(text: str | None) -> str:
    """Help as Markdown. click's mark for text that is not to be wrapped begins a block: examples become a fence."""
    plain, *blocks = (text or "").split("\b\n")
    parts = [plain.strip()]
    for block in blocks:
        lines, _, rest = block.partition("\n\n")
        shown = "\n".join(line.strip() for line in lines.splitlines() if line.strip() not in _TITLES)
        parts += [f"```sh\n{shown}\n```", rest.strip()]
    return "\n\n".join(part for part in parts if part)


def _parameters(command: Any) -> str:
    rows = []
    for one in command.params:
        if getattr(one, "hidden", False) or one.name == "help":
            continue
        if one.param_type_name == "argument":
            rows.append([f"`{(one.metavar or one.name).upper()}`", "", _cell(one.help or "")])
        else:
            names = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
            value = "" if one.is_flag else f"`{one.metavar or _type(one)}`"
            rows.append([names, value, _cell(one.help or "") + _default(one)])
    return table(["option", "value", "meaning"], rows).rstrip()


def _type(option: Any) -> str:
    kind = option.bare_type()
    for part in getattr(kind, "__args__", ()):
        kind = part
    return "TEXT" if kind is str else str(getattr(kind, "__name__", kind)).upper()


def _default(one: Any) -> str:
    if one.required:
        return " Required."
    shown = one.default
    if one.is_flag or callable(shown) or shown in (None, "", [], ()) or "Sentinel" in type(shown).__name__:
        return ""
    return f" Default: `{getattr(shown, 'value', shown)}`."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


# --- The tables of rights in docs/reference/permissions.md, made from broker/protocol/permissions.py.

_SERVED = {api: (low, high) for api, low, high, *_ in API_TABLE}


def permissions() -> str:
    """A row for each right that an API asks for."""
    rows = sorted(PERMISSIONS, key=lambda need: need.api)  # stable: the order of the file within an API
    return table(
        ["API", "versions", "operation", "resource", "asked", "without it"],
        (
            [need.request, _versions(need), need.operation.title, need.resource.title, need.asked, _without(need)]
            for need in rows
        ),
    )


def open_apis() -> str:
    """Which APIs need no right, in a sentence."""
    *names, last = (api.title for api in sorted(OPEN_APIS))
    return f"{', '.join(names)} and {last} need no right.\n"


def operations() -> str:
    """What can be done with a resource of each type."""
    rows = (
        [type.title, ", ".join(operation.title for operation in operations)]
        for type, operations in SUPPORTED_OPERATIONS.items()
    )
    return table(["resource", "operations"], rows)


def _versions(need: Permission) -> str:
    low, high = _SERVED[need.api]
    low, high = max(low, need.low), high if need.high is None else min(high, need.high)
    return str(low) if low == high else f"{low}–{high}"


def _without(need: Permission) -> str:
    return need.otherwise or need.code.name.upper()


PAGES = sorted(
    [
        *(ROOT / "docs" / "reference").glob("*.md"),
        *(ROOT / "docs" / f"{name}.md" for name in ("compatibility", "how-to/other-brokers", "how-to/rights")),
        ROOT / "docs" / "how-to" / "value-formats.md",
    ]
)
BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n\n).*?(<!-- end of table -->)", re.DOTALL)


def options(declared: Iterable[Option]) -> str:
    rows = ([f"`{row.name}`", row.default or "", row.scope, row.meaning] for row in declared)
    return table(["option", "default", "for", "meaning"], rows)


def settings(cls: type[Any], shipped: Mapping[str, str] = MappingProxyType({})) -> str:
    """The settings of `cls`, a part for each group of them. `shipped` has what the shipped file sets, which may differ
    from a default."""
    groups: dict[str, list[list[str]]] = {}
    for one in sorted(settings_of(cls).values(), key=lambda one: one.group == SECURITY):  # the many at the end
        groups.setdefault(one.group, []).append([f"`{one.name}`", _shown_default(one, shipped), one.doc])
    parts = [f"## {_title(group)}\n\n{table(['key', 'default', 'meaning'], rows)}" for group, rows in groups.items()]
    return "\n".join(parts)


def _title(group: str) -> str:
    return {"zookeeper": "ZooKeeper"}.get(group, group.capitalize())


def metrics() -> str:
    rows = ([f"`{name}`", kind, ", ".join(labels), doc] for name, kind, labels, doc in FAMILIES.values())
    return table(["metric", "kind", "labels", "meaning"], rows)


def console_commands() -> str:
    rows = ([f"[`pykafka {name}`](#pykafka-{name})", summary(target)] for name, target in commands().items())
    return table(["command", "what it does"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "options": lambda: options(OPTIONS),
    "write-options": lambda: options(WRITE_OPTIONS),
    "load-arguments": load_arguments,
    "broker-settings": lambda: settings(BrokerConfig, read_properties_file(CONF / "server.properties")),
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
    "logins": logins,
    "typed-columns": typed_columns,
    "broker-needs": needs_table,
    "other-brokers": services_table,
    "other-brokers-sources": sources_table,
}


def names(text: str) -> list[str]:
    """The generated parts that `text` has a place for, in order."""
    return [match["name"] for match in BLOCK.finditer(text)]


def regenerate(text: str) -> str:
    """`text` with every generated part as the code has it. Raises LookupError for an unknown name."""

    def made(match: re.Match[str]) -> str:
        if match["name"] not in TABLES:
            raise LookupError(f"no table {match['name']}: correct the comment on the page, or add it to TABLES")
        return f"{match[1]}{TABLES[match['name']]()}\n{match[3]}"

    return BLOCK.sub(made, text)


def _shown_default(one: Setting, shipped: Mapping[str, str]) -> str:
    text = one.format(one.default)
    default = f"`{text}`" if text else ""
    return default if shipped.get(one.name, text) == text else f"{default}; shipped file: `{shipped[one.name]}`"


def main() -> None:
    """Write the pages whose generated parts differ from the code, and the signature of `load`."""
    for page in [*PAGES, LOAD]:
        before = page.read_text(encoding="utf-8")
        after = written(before) if page is LOAD else regenerate(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page.name} brought up to date")


if __name__ == "__main__":
    main()
