"""The dashboard at ``/`` and its files (``files``).

It holds no stream's data: the page requests ``/v1/...``.
"""
