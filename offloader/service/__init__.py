"""A process that does it all unattended, and the doors through which others look into it and bring entries.

Owns nothing itself. Must never be imported by what works without a server: the other verbs, the library, Spark.
"""
