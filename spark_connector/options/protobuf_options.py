"""The options of the format protobuf, which have the names that from_protobuf and to_protobuf give them.

Called by read_options.py and write_options.py. A descriptor file or a registry is only located here;
formats/record_decoder.py loads it.
"""

from __future__ import annotations

from typing import Final

from broker.errors import ConfigError
from spark_connector.formats.value_format import MOST_PROTOBUF_LEVELS, ProtobufRules
from spark_connector.options.option_table import OptionValues

LEVELS: Final = "recursive.fields.max.depth"
_SWITCHES: Final = {
    "enums.as.ints": "enums_as_ints",
    "emit.default.values": "emits_defaults",
    "upcast.unsigned.ints": "upcasts_unsigned",
    "unwrap.primitive.wrapper.types": "unwraps_wrappers",
    "retain.empty.message.types": "keeps_empty",
}
PROTOBUF_OPTIONS: Final = ("valueMessage", "keyMessage", LEVELS, *_SWITCHES)
NEEDS: Final = "needs 'valueFormat' or 'keyFormat' to be protobuf"
SCHEMA: Final = "a file of protoc --descriptor_set_out, or a registry (schema.registry.url)"


def parse_protobuf_rules(values: OptionValues) -> ProtobufRules:
    levels = values.long(LEVELS, least=-1)
    if levels > MOST_PROTOBUF_LEVELS:
        raise ConfigError(f"Option '{LEVELS}' should not be greater than {MOST_PROTOBUF_LEVELS}, it is {levels}")
    return ProtobufRules(levels, **{field: values.boolean(name) for name, field in _SWITCHES.items()})
