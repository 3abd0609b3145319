"""Test workers run side by side on few cores, so each computes with one thread; every test has the same luck."""

import os

# before NumPy is loaded, also by processes that tests start: threads that wait for each other double the time
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

import pytest
import torch

torch.set_num_threads(1)
os.environ["COLUMNS"] = "120"  # test workers say 80; the console reads it once, when it is imported


@pytest.fixture(autouse=True)
def same_start():
    """Undo `engine.flush_denormals` of a command that ran within a test."""
    torch.manual_seed(0)
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def two_nodes(monkeypatch):
    """A Ray cluster of two nodes on this machine."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "object_store_memory": 150_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    cluster.add_node(**node)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
