"""One text for each IP address, so that addresses of connections and of settings, ACLs and quotas can be compared."""

from __future__ import annotations

import ipaddress


def plain_address(host: str) -> str:
    """IPv4 as such, also of a client on a listener for both; IPv6 in its short form without a zone.

    Java writes IPv6 in full (`0:0:0:0:0:0:0:1`). What is no address stays as it is.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)
