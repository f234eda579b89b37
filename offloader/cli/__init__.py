"""The command line: ``main`` loads the verb; every other module is a verb or shared output and options.

Only terminal output: library users need no decision made here.
"""
