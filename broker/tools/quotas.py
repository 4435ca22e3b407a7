"""Limit what users, client ids and addresses may use (the quotas of kafka-configs.sh).

The names and values are Kafka's: rates are per second and per broker. The most specific quota of a client counts.
Raises BrokerError for what the broker refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from broker.client.admin import Admin
from broker.errors import ConfigError, PykafkaError
from broker.quotas.quota_entity import CLIENT_ID, CLIENT_KEYS, DEFAULT, IP, IP_KEYS, QUOTA_KEYS, USER, QuotaEntity
from broker.settings import did_you_mean
from broker.tools.client_options import JsonOutput, admin_command
from broker.tools.output import print_json, print_table, report

app = typer.Typer(
    help="Limit what users, client ids and addresses may use of each broker.\n\n\b\nExamples:\n"
    "  pykafka quotas list\n"
    "  pykafka quotas set --client-id reports --consumer-byte-rate 1048576",
    no_args_is_help=True,
)

UserName = Annotated[str | None, typer.Option("--user", help="Name of the user.", metavar="NAME")]
UserDefault = Annotated[bool, typer.Option("--user-default", help="Each user without a quota of its own.")]
ClientId = Annotated[str | None, typer.Option("--client-id", help="Client id.", metavar="NAME")]
ClientDefault = Annotated[bool, typer.Option("--client-default", help="Each client id without a quota of its own.")]
Ip = Annotated[str | None, typer.Option("--ip", help="Address, or name of a host.", metavar="ADDR")]
IpDefault = Annotated[bool, typer.Option("--ip-default", help="Each address without a quota of its own.")]
Values = Annotated[
    list[str] | None, typer.Argument(help=f"Quotas: {', '.join(QUOTA_KEYS)}.", metavar="KEY=VALUE…", show_default=False)
]
Keys = Annotated[
    list[str] | None, typer.Argument(help="Quotas to remove; all of the entity by default.", metavar="KEY…")
]


def _rate(key: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        f"--{key.replace('_', '-')}", help=QUOTA_KEYS[key].doc.rstrip(".") + ".", metavar="N"
    )
    return option


@admin_command(app, "list")
def list_quotas(
    admin: Admin,
    user: UserName = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_default: ClientDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    as_json: JsonOutput = False,
) -> None:
    """List quotas: all, or those of the entities that the options name.

    \b
    Examples:
      pykafka quotas list
      pykafka quotas list --user alice --json
    """
    entity = _entity(user, user_default, client_id, client_default, ip, ip_default)
    found = sorted(admin.describe_client_quotas(entity.parts()).items(), key=lambda item: _shown(item[0]))
    if as_json:
        print_json([{"entity": _document(entity), "quotas": dict(sorted(of.items()))} for entity, of in found])
        return
    rows = [(*_shown(entity), key, _number(value)) for entity, of in found for key, value in sorted(of.items())]
    print_table(("user", "client-id", "ip", "quota", "per second"), rows, nothing="There are no quotas.")


@admin_command(app, "set")
def set_quotas(
    admin: Admin,
    values: Values = None,
    user: UserName = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_default: ClientDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    producer_byte_rate: Annotated[float | None, _rate("producer_byte_rate")] = None,
    consumer_byte_rate: Annotated[float | None, _rate("consumer_byte_rate")] = None,
    request_percentage: Annotated[float | None, _rate("request_percentage")] = None,
    controller_mutation_rate: Annotated[float | None, _rate("controller_mutation_rate")] = None,
    connection_creation_rate: Annotated[float | None, _rate("connection_creation_rate")] = None,
    as_json: JsonOutput = False,
) -> None:
    """Set quotas of a user, a client id, both together, or an address. Other quotas of the entity stay.

    \b
    Examples:
      pykafka quotas set --user alice --producer-byte-rate 1048576 --consumer-byte-rate 2097152
      pykafka quotas set --user-default --client-default request_percentage=50
      pykafka quotas set --ip 10.0.0.7 --connection-creation-rate 5
    """
    entity = _named(_entity(user, user_default, client_id, client_default, ip, ip_default))
    options = {
        "producer_byte_rate": producer_byte_rate,
        "consumer_byte_rate": consumer_byte_rate,
        "request_percentage": request_percentage,
        "controller_mutation_rate": controller_mutation_rate,
        "connection_creation_rate": connection_creation_rate,
    }
    wanted = parse_quotas(values or ()) | {key: value for key, value in options.items() if value is not None}
    if not wanted:
        raise ConfigError("name a quota to set, such as --producer-byte-rate 1048576")
    _check_keys(entity, wanted)
    admin.alter_client_quotas(entity, wanted)
    shown = ", ".join(f"{key}={_number(value)}" for key, value in wanted.items())
    report(as_json, f"Set {shown} of {entity}.", {"entity": _document(entity), "set": wanted})


@admin_command(app)
def remove(
    admin: Admin,
    keys: Keys = None,
    user: UserName = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_default: ClientDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    as_json: JsonOutput = False,
) -> None:
    """Remove quotas of a user, a client id, both together, or an address. Less specific quotas then count.

    \b
    Examples:
      pykafka quotas remove --user alice producer_byte_rate
      pykafka quotas remove --client-id reports
    """
    entity = _named(_entity(user, user_default, client_id, client_default, ip, ip_default))
    _check_keys(entity, keys or ())
    has = admin.describe_client_quotas(entity.parts(), strict=True).get(entity, {})
    if missing := [key for key in keys or () if key not in has]:
        raise PykafkaError(f"{entity} has no quota {', '.join(missing)}")
    removed = list(keys or sorted(has))
    if not removed:
        raise PykafkaError(f"{entity} has no quotas; `pykafka quotas list` shows all")
    admin.alter_client_quotas(entity, dict.fromkeys(removed))
    report(as_json, f"Removed {', '.join(removed)} of {entity}.", {"entity": _document(entity), "removed": removed})


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


def _entity(
    user: str | None, user_default: bool, client_id: str | None, client_default: bool, ip: str | None, ip_default: bool
) -> QuotaEntity:
    """What the options name; nothing at all is possible."""
    chosen: dict[str, str | None] = {}
    for option, name, default in (
        (USER, user, user_default),
        (CLIENT_ID, client_id, client_default),
        (IP, ip, ip_default),
    ):
        if name is not None and default:
            raise ConfigError(f"give --{option} or --{option.removesuffix('-id')}-default, not both")
        if name == "":
            raise ConfigError(f"--{option}: the name is empty")
        chosen[option] = DEFAULT if default else name
    if chosen[IP] is not None and (chosen[USER] is not None or chosen[CLIENT_ID] is not None):
        raise ConfigError("a quota is for an address, or for users and client ids")
    return QuotaEntity(chosen[USER], chosen[CLIENT_ID], chosen[IP])


def _named(entity: QuotaEntity) -> QuotaEntity:
    if not entity.parts():
        raise ConfigError("name whom the quota is for: --user, --client-id or --ip, or their defaults")
    return entity


def _check_keys(entity: QuotaEntity, keys: Iterable[str]) -> None:
    known = CLIENT_KEYS if entity.ip is None else IP_KEYS
    for key in keys:
        if key not in QUOTA_KEYS:
            raise ConfigError(f"there is no quota {key!r}{did_you_mean(key, QUOTA_KEYS)}")
        if key not in known:
            raise ConfigError(f"{key} is for {'addresses' if entity.ip is None else 'users and client ids'} only")


def _shown(entity: QuotaEntity) -> tuple[str, str, str]:
    """User, client id and address for people."""
    parts = entity.parts()
    user, client_id, ip = ((parts[kind] or "<default>") if kind in parts else "" for kind in (USER, CLIENT_ID, IP))
    return user, client_id, ip


def _document(entity: QuotaEntity) -> dict[str, str | None]:
    """As in the protocol: the default is null."""
    return {kind: name or None for kind, name in entity.parts().items()}


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
