"""The options of schema registries, and of Avro without one: the same for reads and writes."""

from __future__ import annotations

from typing import Final

from spark_connector.formats.value_format import AVRO_ENCODINGS, REGISTERED, REGISTRY_TYPES
from spark_connector.options.option import Option, each

REGISTRY_URL: Final = "schema.registry.url"
REGISTRY_TYPE: Final = "schema.registry.type"
REGISTRY: Final = (REGISTRY_URL, REGISTRY_TYPE)
"""One of them says that there is a registry."""

_ACCESS = (
    Option("schema.registry.basic.auth.user.info", "`user:password` for the registry (ours)"),
    Option("schema.registry.bearer.auth.token", "token for the registry (ours)"),
    Option("schema.registry.ssl.ca.location", "PEM file of the certificates to trust for an https registry (ours)"),
)
_SOURCE: Final = "schema.registry.bearer.auth.credentials.source"
_BEARER = (
    Option(
        _SOURCE,
        "where tokens for the registry come from: STATIC_TOKEN (`schema.registry.bearer.auth.token`), OAUTHBEARER (the "
        "identity provider of the next options) or SASL_OAUTHBEARER_INHERIT (that of `kafka.sasl.…`); as Confluent's "
        "`bearer.auth.…` (ours)",
        "STATIC_TOKEN",
        choices=("STATIC_TOKEN", "OAUTHBEARER", "SASL_OAUTHBEARER_INHERIT"),
        needs=REGISTRY,
    ),
    *each(
        (
            Option("schema.registry.bearer.auth.issuer.endpoint.url", "the token endpoint, for OAUTHBEARER (ours)"),
            Option("schema.registry.bearer.auth.client.id", "the id there (ours)"),
            Option("schema.registry.bearer.auth.client.secret", "the secret there (ours)"),
            Option("schema.registry.bearer.auth.scope", "the scope to ask for (ours)"),
        ),
        needs=(_SOURCE,),
        being=("OAUTHBEARER",),
    ),
    *each(
        (
            Option("schema.registry.bearer.auth.logical.cluster", "Confluent Cloud's id of the registry (ours)"),
            Option("schema.registry.bearer.auth.identity.pool.id", "Confluent Cloud's identity pool (ours)"),
        ),
        needs=(_SOURCE, "schema.registry.bearer.auth.token"),
    ),
)
_OF_KINDS = (
    (
        Option(
            "schema.registry.group",
            "for glue: the registry's name (`default-registry`); for apicurio (`default`) and azure: the group of its "
            "schemas (ours)",
        ),
        ("glue", "apicurio", "azure"),
    ),
    (Option("schema.registry.region", "for glue: the region of AWS; unset: as the SDK finds it (ours)"), ("glue",)),
    (
        Option(
            "schema.registry.use.id",
            "for apicurio: which id values begin with (Apicurio's `apicurio.registry.use-id`) (ours)",
            "contentId",
            choices=("contentId", "globalId"),
        ),
        ("apicurio",),
    ),
    (
        Option(
            "schema.registry.id.bytes",
            "for apicurio: how long that id is: 4, or 8 as serializers before version 3 write it (ours)",
            "4",
            choices=("4", "8"),
        ),
        ("apicurio",),
    ),
)
_PROFILE = Option(
    "schema.registry.profile",
    "for glue: the profile of the shared configuration of AWS (ours)",
    needs=(REGISTRY_TYPE,),
    being=("glue",),
)
REGISTRY_ACCESS = (
    *each(_ACCESS, needs=REGISTRY),
    *(row._replace(needs=(REGISTRY_TYPE,), being=kinds, kept="values") for row, kinds in _OF_KINDS),
    _PROFILE,
    *_BEARER,
)
REGISTRY_ACCESS = each(REGISTRY_ACCESS, formats=REGISTERED)
REGISTRY_KIND = Option(
    REGISTRY_TYPE,
    "what the registry is: confluent (and those that speak its API: Karapace, Redpanda, Apicurio's "
    "`/apis/ccompat/v7`), glue (AWS), apicurio (its own API and serializers) or azure (Event Hubs); glue needs no URL "
    "(ours; docs/how-to/value-formats.md)",
    "confluent",
    choices=REGISTRY_TYPES,
    formats=REGISTERED,
)
AVRO_ENCODING = each(
    (
        Option(
            "valueEncoding",
            "for avro without a registry: binary, single-object (the fingerprint of the schema before the data; "
            "`valueSchema` may name several files then, separated by commas, of which the first is the schema of the "
            "rows), or container (each value is an Avro file of one record; reads) (ours)",
            "binary",
            choices=AVRO_ENCODINGS,
        ),
        Option("keyEncoding", "the same for the key (ours)", "binary", choices=AVRO_ENCODINGS),
    ),
    formats=("avro",),
)
