"""Bytes <-> values: Pulsar's block formats, our extension of them, and the manifest's records.

Owns every byte layout of the project. Must never do I/O, read a clock, log, or start a thread;
imports nothing of ``offloader``.
"""

#: ``offloader`` checks this at import: PyPI has another distribution with a top-level ``formats``.
DISTRIBUTION = "offloader"
