"""Patterns in the languages of those who write them: RE2's, as the protocol has, and Java's, as Kafka's settings have.

Python's `re` reads many of them in another way (`\\w`, `$`, `{,3}`, `[[:alpha:]]`), without an error.
"""
