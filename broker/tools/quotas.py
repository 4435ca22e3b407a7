"""Limit what users, client ids and addresses may use (the quotas of kafka-configs.sh).

The names and values are Kafka's: rates are per second and per broker. The most specific quota of a client counts.
Raises BrokerError for what the broker refuses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from broker.client.admin import Admin
from broker.errors import ConfigError, PykafkaError
from broker.quotas.quota_entity import CLIENT_ID, CLIENT_KEYS, DEFAULT, IP, IP_KEYS, QUOTA_KEYS, USER, QuotaEntity
from broker.settings import did_you_mean
from broker.tools.client_options import JsonOutput, admin_command, flag, option, with_options
from broker.tools.output import print_json, print_table, report

app = typer.Typer(
    help="Limit what users, client ids and addresses may use of each broker.\n\n\b\nExamples:\n"
    "  pykafka quotas list\n"
    "  pykafka quotas set --client-id reports --consumer-byte-rate 1048576",
    no_args_is_help=True,
)


def _rate(key: str) -> Any:
    return option(QUOTA_KEYS[key].doc.rstrip(".") + ".", "N")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityOptions:
    """Whom quotas are for."""

    user: Annotated[str | None, option("Name of the user.", "NAME", "--user")] = None
    user_default: Annotated[bool, flag("Each user without a quota of its own.", "--user-default")] = False
    client_id: Annotated[str | None, option("Client id.", "NAME", "--client-id")] = None
    client_default: Annotated[bool, flag("Each client id without a quota of its own.", "--client-default")] = False
    ip: Annotated[str | None, option("Address, or name of a host.", "ADDR", "--ip")] = None
    ip_default: Annotated[bool, flag("Each address without a quota of its own.", "--ip-default")] = False

    def entity(self) -> QuotaEntity:
        """Nothing at all is possible. Raises ConfigError."""
        chosen: dict[str, str | None] = {}
        for kind, name, default in (
            (USER, self.user, self.user_default),
            (CLIENT_ID, self.client_id, self.client_default),
            (IP, self.ip, self.ip_default),
        ):
            if name is not None and default:
                raise ConfigError(f"give --{kind} or --{kind.removesuffix('-id')}-default, not both")
            if name == "":
                raise ConfigError(f"--{kind}: the name is empty")
            chosen[kind] = DEFAULT if default else name
        if chosen[IP] is not None and (chosen[USER] is not None or chosen[CLIENT_ID] is not None):
            raise ConfigError("a quota is for an address, or for users and client ids")
        return QuotaEntity(chosen[USER], chosen[CLIENT_ID], chosen[IP])

    def named(self) -> QuotaEntity:
        """Raises ConfigError for nothing, too."""
        entity = self.entity()
        if not entity.parts():
            raise ConfigError("name whom the quota is for: --user, --client-id or --ip, or their defaults")
        return entity


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetOptions(EntityOptions):
    producer_byte_rate: Annotated[float | None, _rate("producer_byte_rate")] = None
    consumer_byte_rate: Annotated[float | None, _rate("consumer_byte_rate")] = None
    request_percentage: Annotated[float | None, _rate("request_percentage")] = None
    controller_mutation_rate: Annotated[float | None, _rate("controller_mutation_rate")] = None
    connection_creation_rate: Annotated[float | None, _rate("connection_creation_rate")] = None

    def quotas(self) -> dict[str, float]:
        given = {key: getattr(self, key) for key in QUOTA_KEYS}
        return {key: value for key, value in given.items() if value is not None}


@admin_command(app, "list")
@with_options
def list_quotas(admin: Admin, options: EntityOptions, as_json: JsonOutput = False) -> None:
    """List quotas: all, or those of the entities that the options name.

    \b
    Examples:
      pykafka quotas list
      pykafka quotas list --user alice --json
    """
    found = sorted(admin.describe_client_quotas(options.entity().parts()).items(), key=lambda item: _shown(item[0]))
    if as_json:
        print_json([{"entity": _document(entity), "quotas": dict(sorted(of.items()))} for entity, of in found])
        return
    rows = [(*_shown(entity), key, _number(value)) for entity, of in found for key, value in sorted(of.items())]
    print_table(("user", "client-id", "ip", "quota", "per second"), rows, nothing="There are no quotas.")


@admin_command(app, "set")
@with_options
def set_quotas(
    admin: Admin,
    *,
    values: Annotated[
        list[str] | None,
        typer.Argument(help=f"Quotas: {', '.join(QUOTA_KEYS)}.", metavar="KEY=VALUE…", show_default=False),
    ] = None,
    options: SetOptions,
    as_json: JsonOutput = False,
) -> None:
    """Set quotas of a user, a client id, both together, or an address. Other quotas of the entity stay.

    \b
    Examples:
      pykafka quotas set --user alice --producer-byte-rate 1048576 --consumer-byte-rate 2097152
      pykafka quotas set --user-default --client-default request_percentage=50
      pykafka quotas set --ip 10.0.0.7 --connection-creation-rate 5
    """
    entity, wanted = options.named(), parse_quotas(values or ()) | options.quotas()
    if not wanted:
        raise ConfigError("name a quota to set, such as --producer-byte-rate 1048576")
    _check_keys(entity, wanted)
    admin.alter_client_quotas(entity, wanted)
    shown = ", ".join(f"{key}={_number(value)}" for key, value in wanted.items())
    report(as_json, f"Set {shown} of {entity}.", {"entity": _document(entity), "set": wanted})


@admin_command(app)
@with_options
def remove(
    admin: Admin,
    *,
    keys: Annotated[
        list[str] | None, typer.Argument(help="Quotas to remove; all of the entity by default.", metavar="KEY…")
    ] = None,
    options: EntityOptions,
    as_json: JsonOutput = False,
) -> None:
    """Remove quotas of a user, a client id, both together, or an address. Less specific quotas then count.

    \b
    Examples:
      pykafka quotas remove --user alice producer_byte_rate
      pykafka quotas remove --client-id reports
    """
    entity = options.named()
    _check_keys(entity, keys or ())
    has = admin.describe_client_quotas(entity.parts(), strict=True).get(entity, {})
    if missing := [key for key in keys or () if key not in has]:
        raise PykafkaError(f"{entity} has no quota {', '.join(missing)}")
    removed = list(keys or sorted(has))
    if not removed:
        raise PykafkaError(f"{entity} has no quotas; `pykafka quotas list` shows all")
    admin.alter_client_quotas(entity, dict.fromkeys(removed))
    document = {"entity": _document(entity), "removed": removed}
    report(as_json, f"Removed {', '.join(removed)} of {entity}.", document)


def parse_quotas(texts: Iterable[str]) -> dict[str, float]:
    """`key=value` texts, also several with commas between. Raises ConfigError."""
    found: dict[str, float] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        key, equals, value = text.partition("=")
        if key not in QUOTA_KEYS:
            raise ConfigError(f"{text}: there is no quota {key!r}{did_you_mean(key, QUOTA_KEYS)}")
        try:
            found[key] = float(value)
        except ValueError:
            raise ConfigError(f"{text}: expected {key}=NUMBER" + ("" if equals else ", a number is missing")) from None
    return found


def _check_keys(entity: QuotaEntity, keys: Iterable[str]) -> None:
    known = CLIENT_KEYS if entity.ip is None else IP_KEYS
    for key in keys:
        if key not in QUOTA_KEYS:
            raise ConfigError(f"there is no quota {key!r}{did_you_mean(key, QUOTA_KEYS)}")
        if key not in known:
            raise ConfigError(f"{key} is for {'addresses' if entity.ip is None else 'users and client ids'} only")


def _shown(entity: QuotaEntity) -> tuple[str, str, str]:
    parts = entity.parts()
    user, client_id, ip = ((parts[kind] or "<default>") if kind in parts else "" for kind in (USER, CLIENT_ID, IP))
    return user, client_id, ip


def _document(entity: QuotaEntity) -> dict[str, str | None]:
    """As in the protocol: the default is null."""
    return {kind: name or None for kind, name in entity.parts().items()}


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
