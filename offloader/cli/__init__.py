"""The command line: ``main`` finds the verb, every other module is one verb or a part of how verbs look.

Owns words on terminals. Must never hold a decision that a library user would miss.
"""
