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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
