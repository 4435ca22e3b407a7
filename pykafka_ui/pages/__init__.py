"""The pages of a cluster; those of loads are in `loads`."""
