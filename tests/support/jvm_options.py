"""Options for the JVMs of Spark that tests start: each lives for seconds, so the optimising compiler doesn't pay."""

from __future__ import annotations

import os

__all__ = ["JVM_VARIABLES", "use_short_lived_jvms"]

_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Variables that Spark's scripts read: for the JVM that builds a command's class path, drivers, masters and workers.
JVM_VARIABLES = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")


def use_short_lived_jvms() -> None:
    """Sets the options for every JVM that Spark's scripts start from now on, unless the environment has others."""
    for name in JVM_VARIABLES:
        os.environ.setdefault(name, _OPTIONS)
