"""Ray for a job: join the cluster when submitted to one, else start a small private one."""

from __future__ import annotations

import logging
import os

import ray


def start_ray() -> None:
    """Connect to Ray.

    Inside ``ray job submit`` (which sets ``RAY_ADDRESS``) this joins that cluster; otherwise it starts a private local
    one, with token authentication (see :mod:`jobs`), that ends with the process.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C must not wait for the running trials
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new one prints tables at any verbosity
    logging.getLogger("ray.tune").setLevel(logging.ERROR)  # it warns about the loggers that are off
    if ray.is_initialized():
        return
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False)
        return
    # Ray runs workers at niceness 15; here they do the measuring and must not starve beside any other process.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        address="local",
        include_dashboard=False,
        object_store_memory=200_000_000,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
