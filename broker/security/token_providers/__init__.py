"""Where access tokens come from: one module for each identity provider; provider_table.py has them by name."""
