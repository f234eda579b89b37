"""The page for people: what is served at ``/``.

Owns the files of the page (``files``). Must never hold data of a stream: the page asks ``/v1/...`` for it.
"""
