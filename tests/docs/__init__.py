"""Tests of the documents: the site, the generated reference, the snippets."""
