"""The demo ``offloader demo``: sends real input through the whole package, and verifies and shows the result.

No other package imports it; it uses only public interfaces.
"""
