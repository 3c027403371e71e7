"""The server's entrance.

    make serve                                          # the demo pair on http://127.0.0.1:8000
    python -m serve.app --port 9000 dtype=float32       # what build() takes, as name=value
    serve run serve.app:build max_rows=4                # on a Ray cluster that runs already

The endpoint has no authentication of its own yet: it listens on the loopback interface, and whoever opens it further
(``--host``) must put a proxy with authentication in front.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import time
from types import FrameType
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve as rayserve

from cluster.models.demo import DemoUnavailableError
from cluster.models.loading import ModelError, ModelSpec, model_directory
from cluster.pair import PairSpec, drafter_directory
from serve.deployment import Endpoint

_LOOPBACK = "127.0.0.1"
_QUEUED_PER_ROW = 4


class ServerArgs(BaseModel):
    """What :func:`build` takes.

    Attributes:
        model: the name under which requests address the pair.
        verifier, drafter: ``demo``, a directory or a hub id; an empty drafter serves plain decoding only.
        dtype, device: of both models.
        max_rows: most requests decoded at a time; four times as many are let in, the others wait in Serve's queue.
        threads: torch threads on the CPU, and the CPUs that the replica asks of Ray.
        gpus: GPUs that the replica asks of Ray.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = "demo"
    verifier: str = "demo"
    drafter: str = "demo"
    dtype: str = "auto"
    device: str = "cpu"
    max_rows: int = Field(8, ge=1)
    threads: int = Field(1, ge=1)
    gpus: float = Field(0, ge=0)

    def pair(self) -> PairSpec:
        """The pair to load."""
        drafter = ModelSpec(self.drafter, None, self.dtype, self.device) if self.drafter else None
        verifier = ModelSpec(self.verifier, None, self.dtype, self.device)
        return PairSpec(verifier, drafter, self.max_rows, self.threads)


def build(args: dict[str, Any]) -> rayserve.Application:
    """The Serve application, for ``serve run serve.app:build name=value ...``, config files and :func:`main`.

    Args:
        args: see :class:`ServerArgs`; an unknown name is an error.
    """
    settings = ServerArgs.model_validate(args)
    deployment: rayserve.Deployment = Endpoint.options(  # type: ignore[attr-defined]  # Ray's decorator is untyped
        max_ongoing_requests=_QUEUED_PER_ROW * settings.max_rows,
        ray_actor_options={"num_cpus": settings.threads, "num_gpus": settings.gpus},
    )
    return deployment.bind(settings.pair(), settings.model)


def main(argv: list[str] | None = None) -> None:
    """Run a server of one's own until Ctrl-C: a private Ray, the endpoint, nothing else."""
    options, application = _parse(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 lets any other process starve the server
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # on a busy machine 5 s end in a killed proxy
    signal.signal(signal.SIGTERM, _interrupt)
    print("starting Ray and loading the models ...", flush=True)
    try:
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=100_000_000,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
        rayserve.start(proxy_location="HeadOnly", http_options={"host": options.host, "port": options.port})
        rayserve.run(application, route_prefix="/")
        print(_greeting(options.host, options.port, options.model), flush=True)
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        print("stopping ...", flush=True)
    except (RuntimeError, TimeoutError) as error:
        raise SystemExit(f"Expected the server to start, got: {error}") from error
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half a Ray behind
        if ray.is_initialized():
            rayserve.shutdown()
            ray.shutdown()


def _parse(argv: list[str] | None) -> tuple[argparse.Namespace, rayserve.Application]:
    """Options and application; ends the process with one sentence where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m serve.app", description="Serve the pair, OpenAI-compatible.")
    parser.add_argument("--host", default=_LOOPBACK, help="interface to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    parser.add_argument(
        "settings", nargs="*", metavar="name=value", help=f"any of {', '.join(ServerArgs.model_fields)}"
    )
    options = parser.parse_args(argv)
    try:
        named = dict(setting.split("=", 1) for setting in options.settings)
    except ValueError:
        parser.error(f"Expected settings as name=value, got {' '.join(options.settings)!r}")
    try:
        settings = ServerArgs.model_validate(named)
        pair = settings.pair()
        model_directory(pair.verifier)
        if pair.drafter is not None:
            drafter_directory(pair.drafter)
        _check_free(options.host, options.port)
    except ValidationError as error:
        parser.error(_sentence(error))
    except (DemoUnavailableError, ModelError, OSError, ValueError) as error:
        parser.error(str(error))
    options.model = settings.model
    return options, build(named)


def _sentence(error: ValidationError) -> str:
    """The first fault of the settings."""
    fault = error.errors()[0]
    name = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        return f"Expected settings among {', '.join(ServerArgs.model_fields)}, got {name!r}"
    return f"Expected {name} to be {fault['msg'].removeprefix('Input should be ')}, got {fault['input']!r}"


def _check_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise OSError(f"Expected to listen on {host}:{port}, got: {error}; choose another --port") from error


def _greeting(host: str, port: int, model: str) -> str:
    url = f"http://{host}:{port}"
    return f"""serving {model!r} on {url}/v1 (Ctrl-C ends it), for example:

curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Name three colours."}}], "temperature": 0, \
"max_tokens": 48, "specfrontier": {{"passes": 2, "leniency_value": 1.0}}}}'
"""


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
