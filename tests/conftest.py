"""What every test shares: an offline, quiet environment and one Ray session for the tests that need it.

Logic is tested without Ray. A test that asks for `ray_cluster` is marked `ray` by itself, so `-m "not ray"`
always means that no Ray process is started.
"""

import os
import secrets
from collections.abc import Iterator

import pytest

# Set before anything imports Ray or transformers; child processes inherit it.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # from the environment, so no token file is written
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Ray's default of 15 lets any other process starve its workers and Serve's proxy.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's spelling)
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"

LOGICAL_CPUS = 4


@pytest.hookimpl(tryfirst=True)  # before pytest's own -m deselection
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch  # takes seconds, and most runs need no GPU test

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray session with four logical CPUs, whatever the machine has."""
    import ray  # tests without Ray must not pay for it

    ray.init(
        address="local",
        num_cpus=LOGICAL_CPUS,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
