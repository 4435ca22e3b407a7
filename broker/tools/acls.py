"""Add, list and remove ACLs: who may do what (kafka-acls.sh).

The options mean what they mean in Kafka's tool. What would be ignored there is refused here: above all, removing never
takes away more than was named, as `--remove --topic t --operation Read` does there (all ACLs of the topic).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import typer

from broker.client.admin import Admin
from broker.errors import ConfigError
from broker.security.acl_types import (
    ANY_HOST,
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AccessControlEntry,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.tools.client_options import (
    JsonOutput,
    admin_command,
    complete_groups,
    complete_topics,
    complete_transactional_ids,
    flag,
    option,
    with_options,
)
from broker.tools.output import counted, note, print_json, print_rows

app = typer.Typer(
    help="Add, list and remove ACLs, which say who may do what.\n\n\b\nExamples:\n"
    "  pykafka acls add --allow-principal User:alice --operation Read --topic flights\n"
    "  pykafka acls list --topic flights --resource-pattern-type match",
    no_args_is_help=True,
)

_COLUMNS = ("resourceType", "name", "patternType", "principal", "host", "operation", "permissionType")

_Term = TypeVar("_Term", PatternType, AclOperation)

_O, _TOPIC, _GROUP = AclOperation, AclResourceType.TOPIC, AclResourceType.GROUP
_CLUSTER, _TRANSACTIONAL_ID = AclResourceType.CLUSTER, AclResourceType.TRANSACTIONAL_ID
_PRODUCER: Mapping[AclResourceType, tuple[AclOperation, ...]] = {
    _TOPIC: (_O.WRITE, _O.DESCRIBE, _O.CREATE),
    _TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE),
    _CLUSTER: (_O.IDEMPOTENT_WRITE,),
}
_CONSUMER: Mapping[AclResourceType, tuple[AclOperation, ...]] = {_TOPIC: (_O.READ, _O.DESCRIBE), _GROUP: (_O.READ,)}


def _names(option: str, meaning: str, metavar: str = "NAME", **more: Any) -> Any:
    return typer.Option(*option.split(), help=f"{meaning}; may be repeated.", metavar=metavar, **more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourceOptions:
    topic: Annotated[
        list[str] | None, _names("--topic -t", "A topic, or * for all", autocompletion=complete_topics)
    ] = None
    group: Annotated[
        list[str] | None, _names("--group -g", "A group, or * for all", autocompletion=complete_groups)
    ] = None
    transactional_id: Annotated[
        list[str] | None,
        _names("--transactional-id", "A transactional id, or * for all", autocompletion=complete_transactional_ids),
    ] = None
    cluster: Annotated[bool, flag("The cluster itself.", "--cluster")] = False
    delegation_token: Annotated[
        list[str] | None, _names("--delegation-token", "A delegation token, or * for all", "ID")
    ] = None
    user_principal: Annotated[
        list[str] | None, _names("--user-principal", "A user as a resource, for CreateTokens and DescribeTokens")
    ] = None
    resource_pattern_type: Annotated[
        str | None,
        option(
            "literal (the default): names are names. prefixed: they are prefixes of names. To list and remove "
            "also any: patterns of either kind with this text; match: all patterns that apply to this name.",
            "TYPE",
        ),
    ] = None
    as_json: JsonOutput = False

    @property
    def pattern_type(self) -> PatternType | None:
        """None if it was not given. Raises ConfigError."""
        if self.resource_pattern_type is None:
            return None
        return _term(PatternType, "--resource-pattern-type", self.resource_pattern_type)

    def patterns(self) -> list[ResourcePattern]:
        """The resources; the pattern type may be one for filters only. Raises ConfigError."""
        kind = self.pattern_type or PatternType.LITERAL
        named = {
            _TOPIC: self.topic,
            _GROUP: self.group,
            _TRANSACTIONAL_ID: self.transactional_id,
            AclResourceType.DELEGATION_TOKEN: self.delegation_token,
            AclResourceType.USER: self.user_principal,
        }
        found = [ResourcePattern(type, name.strip(), kind) for type, names in named.items() for name in names or ()]
        if self.cluster:
            if kind is not PatternType.LITERAL:
                raise ConfigError("--cluster goes with --resource-pattern-type literal only")
            found.append(ResourcePattern(_CLUSTER, CLUSTER_NAME))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListOptions(ResourceOptions):
    principal: Annotated[list[str] | None, _names("--principal", "Only ACLs for this principal", "User:NAME")] = None

    def filters(self) -> list[AclFilter]:
        """They choose what is to be listed. Raises ConfigError."""
        found = [AclFilter(*pattern) for pattern in self.patterns()]
        found = found or [AclFilter(pattern=self.pattern_type or PatternType.ANY)]
        principals = _principals("--principal", self.principal)
        return [one._replace(principal=principal) for principal in principals for one in found] or found


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddOptions(ResourceOptions):
    allow_principal: Annotated[
        list[str] | None, _names("--allow-principal", "Who is allowed; User:* is everybody", "User:NAME")
    ] = None
    deny_principal: Annotated[
        list[str] | None,
        _names("--deny-principal", "Who is denied, whatever other ACLs allow; User:* is everybody", "User:NAME"),
    ] = None
    allow_host: Annotated[
        list[str] | None, _names("--allow-host", "Address from which --allow-principal is allowed (default: *)", "IP")
    ] = None
    deny_host: Annotated[
        list[str] | None, _names("--deny-host", "Address from which --deny-principal is denied (default: *)", "IP")
    ] = None
    operation: Annotated[
        list[str] | None,
        _names(
            "--operation",
            f"What is allowed or denied: {', '.join(one.title for one in AclOperation if one > _O.ANY)} (default: All)",
            "OPERATION",
        ),
    ] = None
    producer: Annotated[
        bool,
        flag(
            "What a producer needs: Write, Describe and Create on --topic, Write and Describe on --transactional-id.",
            "--producer",
        ),
    ] = False
    idempotent: Annotated[bool, flag("With --producer: IdempotentWrite on the cluster, too.", "--idempotent")] = False
    consumer: Annotated[
        bool, flag("What a consumer needs: Read and Describe on --topic, Read on --group.", "--consumer")
    ] = False

    def patterns(self) -> list[ResourcePattern]:
        found = super().patterns() + ([ResourcePattern(_CLUSTER, CLUSTER_NAME)] if self.idempotent else [])
        if not found:
            raise ConfigError(
                "name a resource: --topic, --group, --transactional-id, --cluster, --delegation-token, --user-principal"
            )
        return found

    def acls(self) -> list[Acl]:
        """The ACLs that the options describe; none if they name no principal. Raises ConfigError."""
        self._check()
        return [
            Acl(pattern, AccessControlEntry(principal, operation, permission, host))
            for pattern in dict.fromkeys(self.patterns())
            for permission, principal, host in dict.fromkeys(self._clients())
            for operation in dict.fromkeys(self._operations(pattern.type))
        ]

    def _clients(self) -> Iterator[tuple[AclPermission, str, str]]:
        """Who is allowed and denied, from where."""
        allowed = AclPermission.ALLOW, "--allow-principal", self.allow_principal, self.allow_host
        denied = AclPermission.DENY, "--deny-principal", self.deny_principal, self.deny_host
        for permission, name, principals, hosts in (allowed, denied):
            for principal, host in itertools.product(_principals(name, principals), hosts or (ANY_HOST,)):
                yield permission, principal, host.strip()

    def _operations(self, type: AclResourceType) -> list[AclOperation]:
        if self.producer or self.consumer:
            roles = ((self.producer, _PRODUCER), (self.consumer, _CONSUMER))
            return [one for chosen, operations in roles if chosen for one in operations.get(type, ())]
        wanted = [_term(AclOperation, "--operation", text) for text in self.operation or ("All",)]
        supported = (AclOperation.ALL, *SUPPORTED_OPERATIONS[type])
        for one in wanted:
            if one not in supported:
                names = ", ".join(known.title for known in supported)
                raise ConfigError(f"--operation {one.title}: the operations on a {type.title} are {names}")
        return wanted

    def _check(self) -> None:
        for host, principal in (("allow_host", "allow_principal"), ("deny_host", "deny_principal")):
            if getattr(self, host) and not getattr(self, principal):
                raise ConfigError(f"{_flag(host)} goes with {_flag(principal)}")
        if self.idempotent and not self.producer:
            raise ConfigError("--idempotent goes with --producer")
        if self.producer and not self.topic:
            raise ConfigError("--producer needs --topic")
        if self.consumer and not (self.topic and self.group):
            raise ConfigError("--consumer needs --topic and --group")
        roles = [_flag(role) for role in ("producer", "consumer") if getattr(self, role)]
        unused = ["operation", "deny_principal", "deny_host", "cluster", "delegation_token", "user_principal"]
        unused += [*(() if self.producer else ("transactional_id",)), *(() if self.consumer else ("group",))]
        for name in unused if roles else ():
            if getattr(self, name):
                raise ConfigError(f"{_flag(name)} does not go with {' and '.join(roles)}")
        if (roles or self.operation) and not (self.allow_principal or self.deny_principal):
            raise ConfigError(f"{roles[0] if roles else '--operation'} needs a principal, such as --allow-principal")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoveOptions(AddOptions):
    force: Annotated[bool, flag("Do not ask.", "--force")] = False

    def filters(self) -> list[AclFilter]:
        """They choose what is to be removed: without a principal all ACLs of the resources. Raises ConfigError."""
        return [AclFilter.of(acl) for acl in self.acls()] or [AclFilter(*pattern) for pattern in self.patterns()]


@admin_command(app)
@with_options
def add(admin: Admin, options: AddOptions) -> None:
    """Add ACLs: each principal, host and operation for each resource.

    \b
    Examples:
      pykafka acls add --allow-principal User:alice --operation Read --operation Describe --topic flights
      pykafka acls add --allow-principal User:etl --consumer --topic flights --group etl
      pykafka acls add --allow-principal User:etl --producer --topic etl- --resource-pattern-type prefixed
      pykafka acls add --allow-principal 'User:*' --deny-principal User:bob --deny-host 192.0.2.7 --topic flights
    """
    wanted = options.acls()
    if options.pattern_type not in (None, PatternType.LITERAL, PatternType.PREFIXED):
        raise ConfigError(f"--resource-pattern-type {options.resource_pattern_type}: ACLs are literal or prefixed")
    if not wanted:
        raise ConfigError("give --allow-principal or --deny-principal")
    existing = set(_matching(admin, (AclFilter(*pattern) for pattern in options.patterns())))
    added = [acl for acl in wanted if acl not in existing]
    if added:
        admin.create_acls(added)
    if options.as_json:
        print_json([dict(zip(_COLUMNS, _row(acl), strict=True)) | {"added": acl in added} for acl in wanted])
        return
    for acl in wanted:
        if acl in existing:
            note(f"There is this ACL already: {acl}")
    if added:
        typer.echo(f"Added {counted(len(added), 'ACL')}:")
        _print(added, as_json=False)


@admin_command(app, "list")
@with_options
def list_acls(admin: Admin, options: ListOptions) -> None:
    """List the ACLs of the resources that are named, or all.

    \b
    Examples:
      pykafka acls list
      pykafka acls list --topic flights --resource-pattern-type match
      pykafka acls list --principal User:alice --json
    """
    _print(_matching(admin, options.filters()), options.as_json)


@admin_command(app)
@with_options
def remove(admin: Admin, options: RemoveOptions) -> None:
    """Remove ACLs: those that `add` adds with the same options, or without a principal all of the resources.

    It shows what it will remove and asks, unless --force is given.

    \b
    Examples:
      pykafka acls remove --allow-principal User:alice --operation Read --topic flights
      pykafka acls remove --topic flights --resource-pattern-type any --force
    """
    filters = options.filters()
    if not options.force:
        chosen = _matching(admin, filters)
        for acl in chosen:
            note(str(acl))
        if chosen:
            typer.confirm(f"Remove {counted(len(chosen), 'ACL')}?", abort=True, err=True)
        filters = [AclFilter.of(acl) for acl in chosen]
    removed = admin.delete_acls(filters) if filters else []
    if removed and not options.as_json:
        typer.echo(f"Removed {counted(len(removed), 'ACL')}:")
    _print(removed, options.as_json)


def _matching(admin: Admin, filters: Iterable[AclFilter]) -> list[Acl]:
    return sorted({acl for one in filters for acl in admin.describe_acls(one)})


def _print(acls: Iterable[Acl], as_json: bool) -> None:
    print_rows(_COLUMNS, map(_row, acls), as_json, nothing="There is no such ACL.")


def _row(acl: Acl) -> tuple[str, ...]:
    (type, name, pattern), entry = acl
    return type.name, name, pattern.name, entry.principal, entry.host, entry.operation.name, entry.permission.name


def _principals(option: str, texts: Iterable[str] | None) -> list[str]:
    found = [text.strip() for text in texts or ()]
    for text in found:
        kind, _, name = text.partition(":")
        if not kind or not name:
            raise ConfigError(f"{option} {text}: expected TYPE:NAME, such as User:alice")
    return found


def _term(terms: type[_Term], option: str, text: str) -> _Term:
    try:
        return terms.of(text.strip())
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
