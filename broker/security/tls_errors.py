"""What OpenSSL's errors mean for whoever connects, as errors that say what to set.

Called by broker/client, and by broker/net for connections between brokers.
"""

from __future__ import annotations

import ssl

from broker.errors import AuthenticationFailed, ConnectionFailed, PykafkaError

_MEANINGS = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate; set ssl.keystore.location, or ssl.certificate.location "
    "and ssl.key.location",
    "UNKNOWN_CA": "it does not trust the client's certificate (ssl.keystore.location, ssl.certificate.location)",
    "BAD_CERTIFICATE": "it refuses the client's certificate, or requires one (ssl.keystore.location)",
    "CERTIFICATE_EXPIRED": "the client's certificate has expired (ssl.keystore.location, ssl.certificate.location)",
    "HANDSHAKE_FAILURE": "it accepts none of the TLS versions or ciphers, or requires a client certificate",
}
"""How the reason of an alert ends → what the broker means."""
MAYBE_PLAINTEXT = ": is it a TLS listener, or does it want security.protocol=PLAINTEXT?"
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})


def tls_failure(address: str, error: ssl.SSLError) -> PykafkaError:
    """The error for the user. Missing trust is not retriable, a broken stream is."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message
        if "match" in what:
            return AuthenticationFailed(
                f"{address}: {what.rstrip('.')}; use the host name in the certificate, or switch the check off with "
                "ssl.endpoint.identification.algorithm=none"
            )
        return AuthenticationFailed(
            f"{address}: its certificate is not trusted ({what}); set ssl.ca.location or ssl.truststore.location to "
            "the certificate it is signed with"
        )
    for ending, meaning in _MEANINGS.items():
        if reason.endswith(ending):
            return AuthenticationFailed(f"{address} refused TLS: {meaning}")
    if reason in _NOT_TLS:
        return AuthenticationFailed(
            f"{address} does not speak TLS: is it a listener for security.protocol=PLAINTEXT or SASL_PLAINTEXT?"
        )
    if isinstance(error, ssl.SSLEOFError):
        return ConnectionFailed(f"{address} hung up in the TLS handshake{MAYBE_PLAINTEXT}")
    return ConnectionFailed(f"the TLS connection to {address} broke: {reason.replace('_', ' ').lower() or error}")
