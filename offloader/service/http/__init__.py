"""The HTTP interface of a serving process (docs/HTTP.md).

Only ``serve`` imports it: it needs FastAPI and uvicorn.
"""
