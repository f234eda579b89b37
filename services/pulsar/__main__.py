"""``python -m services.pulsar``: a broker that offloads to a MinIO, both in the foreground until Ctrl-C.

Owns what is printed. Must never keep data: it is for trying things out.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from services.pulsar.broker import offload_settings, running_broker
from services.servers import Unavailable, make_bucket, running

BUCKET = "pulsar"


def main() -> int:
    """Runs both; the end of the terminal, Ctrl-C or SIGTERM ends them."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="offloader-pulsar-") as folder, running("minio") as endpoint:
            make_bucket(endpoint, BUCKET)
            keys = {"ACCESS_KEY_ID": endpoint.access_key, "ACCESS_KEY_SECRET": endpoint.secret_key}
            with running_broker(Path(folder), offload_settings(endpoint.url, BUCKET), keys) as broker:
                for name, value in endpoint.environment.items():
                    print(f"export {name}={value}")
                print(f"# broker {broker.service_url}, admin {broker.admin_url}, offloads to s3://{BUCKET}", flush=True)
                broker.process.wait()
    except KeyboardInterrupt:
        pass
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
