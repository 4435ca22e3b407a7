"""Sockets, frames, TLS and SASL. The server passes the table of handlers."""
