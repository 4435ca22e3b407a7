"""What both sides of the wire need for TLS and SASL: keys and certificates, login modules, SCRAM. No sockets."""
