"""Adapters that point the integration tests of public clients at our broker; their tests are fetched, not kept."""
