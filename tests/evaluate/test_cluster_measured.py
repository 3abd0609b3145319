"""The measurements of the cluster: those of the document are those of the result files."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "how-to" / "use-a-cluster.md").read_text()


def read(name: str):
    return json.loads((ROOT / "results" / "cluster" / f"{name}.json").read_text())


def test_the_cost_of_ray():
    found = read("overhead")
    assert found["results_equal_bit_for_bit"] and 50 < found["seconds_of_a_group"] < 120
    for i, (here, far) in enumerate(zip(found["local"], found["ray"], strict=True)):
        cells = [
            f"{here[key]:.0f} s | {far[key]:.0f} s | {100 * found[more][i]:.1f} %"
            for key, more in (("cpu_seconds", "overhead_cpu"), ("wall_seconds", "overhead_wall"))
        ]
        assert f"| {i + 1} | {' | '.join(cells)} |" in TEXT
    small = read("overhead-small")
    more = [b["cpu_seconds"] - a["cpu_seconds"] for a, b in zip(small["local"], small["ray"], strict=True)]
    assert f"{min(more):.1f} to {max(more):.1f} s of processor time per sweep" in TEXT
    one = read("overhead-niceness")
    assert small["results_equal_bit_for_bit"] and one["results_equal_bit_for_bit"] and one["overhead_cpu"][0] < 0.05
    here, far = one["local"][0]["cpu_seconds"], one["ray"][0]["cpu_seconds"]
    told = f"{here:.0f} s of processor time locally and {far:.0f} s on Ray, {100 * one['overhead_cpu'][0]:.1f} % more"
    assert told in " ".join(TEXT.split())


def test_the_kills():
    found, text = read("kills"), " ".join(TEXT.split())
    at = [kill["finished_runs"] for kill in found["kills"]]
    assert [kill["kind"] for kill in found["kills"]] == ["driver", "worker", "node", "driver"]
    told = f"The driver was killed after {at[0]} finished runs, a worker after {at[1]}, a node after {at[2]}, and the"
    assert f"{told} driver again after {at[3]}." in text
    assert f"{found['runs']} small runs in groups of {found['runs_of_a_group']}" in text
    assert found["results_equal_bit_for_bit"] and found["results_written_again"] == 0
    assert found["finished_runs"] == found["runs"] and found["exit_status_of_the_last_driver"] == 0
    seconds = found["wall_seconds"], found["local"]["wall_seconds"]
    assert f"It took {seconds[0]:.0f} s, and {seconds[1]:.0f} s locally" in text


@pytest.mark.parametrize("name", ["filter-1e5", "filter-1e6", "filter-1e7"])
def test_the_filter_on_two_nodes(name):
    found = read(name)
    far, here = found["ray"], found["local"]
    assert found["equal_bit_for_bit"] and found["files"] == found["features"] == 64
    row = (
        f"| {found['samples']:,} | {far['wall_seconds']:.0f} s | {far['cpu_seconds']:.0f} s | {far['peak_mib']:,} MiB |"
    )
    assert f"{row} {far['load']:.0f} | {here['cpu_seconds']:.0f} s | {here['peak_mib']:,} MiB |" in TEXT


def test_the_memory_of_the_cluster_grows_less_than_the_local_one():
    small, large = read("filter-1e6"), read("filter-1e7")
    far, here = (large[where]["peak_mib"] / small[where]["peak_mib"] for where in ("ray", "local"))
    text = " ".join(TEXT.split())
    assert far < 2 and f"take {far:.1f} times the memory on the cluster and {here:.1f} times locally" in text
    assert f"had {large['ray']['peak_mib_of_one_process']['workers']:,} MiB" in text
