"""The demo ``offloader demo``: real input through the whole package, verified and shown.

No other package imports it; it uses only public interfaces.
"""
