"""HTTP: paths, methods, parameters, fields of requests and answers, headers' content types, and who may ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from fastapi.routing import APIRoute

from offloader.service.auth import OPERATION_OF_ROUTE
from offloader.service.http import routes as application
from offloader.service.http.routes import page_files

__all__ = ["http_interface"]

_METHODS = ("get", "put", "post", "delete", "patch")


def http_interface() -> str:
    # Nothing is asked for: what an application looks into isn't needed to describe it.
    nothing = cast("Any", None)
    app = application.make_application(nothing, nothing, nothing, ledgers=nothing, threads=nothing, answer_s=1.0)
    description = application._description(app)
    lines = [f"security: {', '.join(sorted(description['components']['securitySchemes']))} (bearer)"]
    for path, methods in sorted(description["paths"].items()):
        for method in _METHODS:
            if method in methods:
                lines += ["", f"{method.upper()} {path}{_who(method.upper(), path)}"]
                lines += [f"    {line}" for line in _operation(methods[method])]
    lines += ["", "# not described"]
    described = set(description["paths"])
    routes = (route for route in app.routes if getattr(route, "path", "/v1") not in described)
    lines += sorted(f"GET {_path(route)}" for route in routes if isinstance(route, APIRoute))
    lines += [f"GET HEAD {path}" for path in sorted(page_files())]
    lines.append("\n# shapes")
    for name, schema in sorted(description["components"]["schemas"].items()):
        lines += ["", *_shape(name, schema)]
    return "\n".join(lines) + "\n"


def _path(route: APIRoute) -> str:
    return f"{route.path}{_who('GET', route.path)}"


def _who(method: str, path: str) -> str:
    operation = OPERATION_OF_ROUTE.get(f"{method} {path}")
    return "" if operation is None else f" ({operation.who})"


def _operation(about: Mapping[str, Any]) -> Iterator[str]:
    for each in about.get("parameters", ()):
        needed = "" if each.get("required") else "?"
        default = f" = {each['schema']['default']!r}" if each["schema"].get("default") is not None else ""
        yield f"{each['in']} {each['name']}{needed}: {_type(each['schema'])}{default}"
    body = about.get("requestBody")
    if body is not None:
        needed = "" if body.get("required") else "?"
        yield from (f"body{needed} {kind}: {_type(each.get('schema', {}))}" for kind, each in body["content"].items())
    statuses: dict[str, list[str]] = {}
    for status, answer in sorted(about["responses"].items()):
        content = answer.get("content") or {"nothing": {}}
        kinds = (f"{kind}: {_type(each.get('schema', {}))}" for kind, each in content.items())
        statuses.setdefault("; ".join(kinds), []).append(status)
    yield from (f"{' '.join(numbers)} {text}" for text, numbers in statuses.items())


def _shape(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    more = " (and others)" if schema.get("additionalProperties") is True else ""
    yield f"{name}{more}" if "properties" in schema else f"{name}: {_type(schema)}"
    required = schema.get("required", ())
    for field, about in sorted(schema.get("properties", {}).items()):
        default = f" = {about['default']!r}" if about.get("default") is not None else ""
        yield f"    {field}{'' if field in required else '?'}: {_type(about)}{default}"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " | ".join(repr(each) for each in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        kind = f"array of {_type(schema.get('items', {}))}"
    elif kind == "object":
        values = schema.get("additionalProperties")
        kind = f"object of {_type(values)}" if isinstance(values, Mapping) and values else "object"
    names = ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "pattern", "minItems", "maxItems")
    bounds = [f"{each} {schema[each]}" for each in names if each in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind
