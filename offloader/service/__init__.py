"""The unattended service, with listeners for queries and pushed entries.

Modules that work without a server don't import it: the other commands, the library, Spark.
"""
