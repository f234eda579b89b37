"""Byte layouts: Pulsar's block formats, our extension of them, and the manifest's records.

Pure functions: no I/O, clock, logging or threads. Imports nothing of ``offloader``.
"""

#: ``offloader`` checks this at import: PyPI has another distribution with a top-level ``formats``.
DISTRIBUTION = "offloader"
