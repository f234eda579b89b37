"""The demo: real input through the whole house, verified and shown.

Owns ``offloader demo``. Must never be imported by the rest of the package: it only uses what everyone can use.
"""
