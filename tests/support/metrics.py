"""What a process exposes, asked for the way Prometheus does."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from offloader.telemetry.prometheus import Metrics
from offloader.telemetry.recorder import namespace_of

__all__ = ["exposed", "of_namespace"]


def exposed(metrics: Metrics) -> dict[str, float]:
    """Every line: ``name{label="value",...}`` without the prefix, labels by name -> its value."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            key = sample.name.removeprefix("offloader_") + (f"{{{labels}}}" if labels else "")
            assert key not in found, "a line twice"
            found[key] = sample.value
    return found


def of_namespace(metrics: Metrics, name: str, stream: str, **labels: str) -> float | None:
    """The value of ``name`` of the namespace of ``stream``, ``None``: there is no such line."""
    full = {"namespace": namespace_of(stream), **labels}
    return metrics.registry.get_sample_value(f"offloader_{name}", full)
