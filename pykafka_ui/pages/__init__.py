"""The pages of a cluster; those of loads are in `loads`. Each is a whole document at an address that can be sent to
somebody else.

htmx asks for the same address again every few seconds and takes over what has changed, so a page without scripts shows
the same.
"""
