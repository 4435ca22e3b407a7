"""Pure log storage: segments, indexes, recovery, retention. No sockets, no asyncio."""
