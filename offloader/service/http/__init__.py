"""The HTTP interface of a serving process (docs/HTTP.md).

Owns nothing itself. Must never be imported by other verbs than ``serve``: it brings FastAPI and uvicorn.
"""
