"""Verbs that only the tests of the command line's frame have."""
