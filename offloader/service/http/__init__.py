"""The HTTP interface of a serving process (docs/reference/http.md).

Only ``serve`` imports it: it needs FastAPI and uvicorn.
"""
