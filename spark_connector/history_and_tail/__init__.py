"""One read of a table and the rest of its topics: history and tail."""
