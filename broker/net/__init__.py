"""Sockets and frames; the handler table is handed in."""
