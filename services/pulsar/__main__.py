"""``python -m services.pulsar``: a broker that offloads to a MinIO, both in the foreground until Ctrl-C.

With ``--plugin`` the broker has our plugin and needs a sidecar of yours. It answers questions that are typed:
``ledger 5`` is what the bookie says of ledger 5, ``beans offloader:*`` what the plugin has counted. Data is thrown away
at the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from services.broker_plugin import built_nar
from services.pulsar.broker import Broker, Refused, offload_settings, plugin_settings, running_broker
from services.pulsar.build import DEFAULT, RELEASES
from services.servers import BUCKET, Unavailable, make_bucket, running

#: Where the broker's own offloader puts its objects.
PULSARS_BUCKET = "pulsar"
#: With the plugin, as every document of Pulsar has them.
PORT, ADMIN_PORT = 6650, 8080


def main(arguments: Sequence[str] = ()) -> int:
    """Runs both; the end of the terminal, Ctrl-C or SIGTERM ends them."""
    given = _parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="offloader-pulsar-") as folder, running("minio") as endpoint:
            keys = {"ACCESS_KEY_ID": endpoint.access_key, "ACCESS_KEY_SECRET": endpoint.secret_key}
            if given.plugin:
                bucket, says = BUCKET, f"with the plugin, which asks {given.sidecar}"
                settings = plugin_settings(built_nar(), given.sidecar, given.port, given.admin_port)
            else:
                bucket, says = PULSARS_BUCKET, f"offloads to s3://{PULSARS_BUCKET}"
                settings = offload_settings(endpoint.url, bucket)
            make_bucket(endpoint, bucket)
            with running_broker(Path(folder), settings, keys, release=given.release) as broker:
                for name, value in endpoint.environment.items():
                    print(f"export {name}={value}")
                print(f"# broker {broker.service_url}, admin {broker.admin_url}, {says}", flush=True)
                if given.plugin:
                    threading.Thread(target=_answer, args=(broker,), daemon=True).start()
                broker.process.wait()
    except KeyboardInterrupt:
        pass
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m services.pulsar", description="A broker and a MinIO.")
    parser.add_argument("--release", choices=RELEASES, default=DEFAULT, help=f"of Pulsar (default: {DEFAULT})")
    parser.add_argument("--plugin", action="store_true", help="with our plugin instead of Pulsar's own offloader")
    parser.add_argument("--sidecar", default="http://127.0.0.1:8750", metavar="URL", help="that the plugin asks")
    parser.add_argument("--port", type=int, default=PORT, help="for clients, with --plugin")
    parser.add_argument("--admin-port", type=int, default=ADMIN_PORT, help="of the admin interface, with --plugin")
    return parser.parse_args(arguments)


def _answer(broker: Broker) -> None:
    """Passes on what is typed."""
    for line in sys.stdin:
        if line.strip():
            try:
                print(json.dumps(broker.ask(line.strip())), flush=True)
            except (Refused, Unavailable) as error:
                print(error, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
