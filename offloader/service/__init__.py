"""The long-running service, with listeners for queries and pushed entries.

Components that work without a server (the other commands, the library, Spark) don't import this package.
"""
