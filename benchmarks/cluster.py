"""The cluster, measured on one machine: the cost of Ray for groups of runs, and the filter over many parquet files.

    python benchmarks/cluster.py overhead --out results/cluster/overhead.json
    python benchmarks/cluster.py kills --out results/cluster/kills.json
    python benchmarks/cluster.py filter --samples 1000000 --out results/cluster/filter-1e6.json

`overhead` computes the same sweep in this process's way and as tasks of a cluster with one core, by turns: local, ray,
local, ray, … Both have one thread and compute one group after the other, so the times differ by what Ray costs. The
cluster runs before the sweep begins; connecting to it and starting its worker are part of the time.

`kills` computes 200 small runs on a cluster of two nodes. It kills the driver, a worker, a node and the driver again,
each when a given number of runs has finished, and compares every run with a local sweep bit for bit.

`filter` writes invented features of 100 labels to 64 parquet files, scores them on a cluster of two nodes with one core
each, and in one process, and compares the scores bit for bit.

Processor time and memory are those of the command and of all processes of the cluster, looked at twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
_TICKS = os.sysconf("SC_CLK_TCK")  # of a second, in which Linux counts processor time
N_FILES, N_FEATURES, N_LABELS, WRONG = 64, 64, 100, 0.2


class Watch(threading.Thread):
    """Looks at a process and its descendants: processor time of all, and the largest sum of their memory."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.seconds: dict[int, float] = {}  # by process
        self.before: dict[int, float] = {}
        self.names: dict[int, str] = {}
        self.peak = 0.0  # MiB
        self.largest: dict[str, float] = {}  # MiB of the largest process of each kind
        self._end = threading.Event()

    def look(self) -> None:
        memory = 0.0
        for pid, seconds in _tree(self.root).items():
            self.seconds[pid] = seconds
            self.names[pid] = _kind(pid) or self.names.get(pid, "command")
            own, kind = _share_of_memory(pid), self.names[pid]
            memory += own
            self.largest[kind] = max(self.largest.get(kind, 0.0), own)
        self.peak = max(self.peak, memory)

    def run(self) -> None:
        while not self._end.wait(0.5):
            self.look()

    def cpu(self) -> dict[str, float]:
        """Return the processor seconds of the command, of Ray's workers and of Ray's own processes."""
        found: Counter[str] = Counter()
        for pid, used in self.seconds.items():
            found[self.names[pid]] += used - self.before.get(pid, 0.0)  # type: ignore[assignment]
        return {name: round(float(seconds), 2) for name, seconds in found.items()}

    def end(self) -> None:
        self._end.set()
        self.join()
        self.look()


def _tree(root: int) -> dict[int, float]:
    """Return the processor seconds of a process and all below it, by their numbers."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid], seconds[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS

    def is_below(pid: int) -> bool:
        while pid not in (0, root):
            pid = parents.get(pid, 0)
        return pid == root

    return {pid: own for pid, own in seconds.items() if pid != os.getpid() and is_below(pid)}


def _kind(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""
    if text.startswith("ray::") and "Agent" not in text:
        return "workers"
    return "cluster" if "/ray/" in text or text.startswith("ray::") else "command" if "purereplay" in text else ""


def _share_of_memory(pid: int) -> float:
    """Return the memory of a process in MiB; pages that several processes share count in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


@contextmanager
def nodes(n: int, store: int) -> Iterator[tuple[Any, dict[str, int]]]:
    """A Ray cluster of n nodes with one core each on this machine, and the options of a node to be added."""
    # Ray's workers have niceness 15 by default, and wait for every other process of a busy machine
    os.environ.update({"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"})
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": store}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    for _ in range(n - 1):
        cluster.add_node(**node)
    try:
        yield cluster, node
    finally:
        cluster.shutdown()


def measured(*arguments: object) -> dict[str, Any]:
    """Run a command of purereplay; wall and processor seconds, largest memory, and the load of the machine.

    With --cluster the processes of the cluster, which this one has started, are counted too.
    """
    before = _tree(os.getpid())
    busy, began = _busy(), time.perf_counter()
    call = [sys.executable, "-m", "purereplay", *map(str, arguments)]
    process = subprocess.Popen(call, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    watch = Watch(os.getpid() if any("--cluster" in str(text) for text in arguments) else process.pid)
    watch.before = before
    watch.start()
    if process.wait():
        raise SystemExit(f"{' '.join(call)} failed.")
    wall = time.perf_counter() - began
    watch.end()
    cpu = watch.cpu()
    return {
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(sum(cpu.values()), 2),
        "cpu_seconds_by_process": cpu,
        "peak_mib": round(watch.peak),
        "peak_mib_of_one_process": {kind: round(memory) for kind, memory in watch.largest.items()},
        "cpu_seconds_of_others": round(max(0.0, _busy() - busy - sum(cpu.values())), 1),
        "load": round(os.getloadavg()[0], 2),
    }


def _busy() -> float:
    """Return the processor seconds of the whole machine since its start."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / _TICKS


# ---------------------------------------------------------------- groups of runs


def overhead(folder: Path, n_pairs: int, n_groups: int, size: int, options: list[str]) -> dict[str, Any]:
    """Compute the same groups locally and on a cluster, by turns."""
    seeds = ",".join(str(i + 1) for i in range(n_groups * size))
    sweep = ["sweep", "--dataset=digits", "--preset=demo", "--device=cpu", f"--seed={seeds}", f"--group-size={size}"]
    sweep += [f"--set={option}" for option in options]
    local, far = [], []
    with nodes(1, 150_000_000) as (cluster, _):
        for i in range(n_pairs):
            local.append(measured(*sweep, f"--out={folder / f'local-{i}'}"))
            print("local", local[-1], flush=True)
            far.append(measured(*sweep, f"--out={folder / f'ray-{i}'}", f"--cluster=ray={cluster.address}"))
            print("ray  ", far[-1], flush=True)
    same = all(_metrics(folder / f"local-{i}") == _metrics(folder / f"ray-{i}") for i in range(n_pairs))
    ratios = {
        f"overhead_{kind}": [
            round(b[f"{kind}_seconds"] / a[f"{kind}_seconds"] - 1, 4) for a, b in zip(local, far, strict=True)
        ]
        for kind in ("wall", "cpu")
    }
    return {
        "groups": n_groups,
        "runs_of_a_group": size,
        "settings": options,
        "seconds_of_a_group": round(float(np.mean([a["wall_seconds"] for a in local])) / n_groups, 1),
        "local": local,
        "ray": far,
        **ratios,
        "results_equal_bit_for_bit": same,
    }


def _metrics(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in sorted(folder.glob("*/metrics.jsonl"))}


# ---------------------------------------------------------------- kills

SMALL = ("expert_epochs=6", "base_epochs=2", "finetune_epochs=5", "hidden=16")  # settings of a run of a second
KILLS = ("driver", "worker", "node", "driver")


def kills(folder: Path, n_runs: int, size: int, options: list[str]) -> dict[str, Any]:
    """Compute a sweep on two nodes while parts of the cluster are killed, and compare it with a local one.

    The k-th of the four kills happens when k fifths of the runs have finished, however fast they are.
    """
    seeds = ",".join(str(i + 1) for i in range(n_runs))
    sweep = ["sweep", "--dataset=digits", "--preset=demo", "--device=cpu", f"--seed={seeds}", f"--group-size={size}"]
    sweep += [f"--set={option}" for option in options or SMALL]
    began, ends, killed, written = time.perf_counter(), 0, [], {}
    far = folder / "ray"
    with nodes(2, 150_000_000) as (cluster, node):
        call = [sys.executable, "-m", "purereplay", *sweep, f"--out={far}", f"--cluster=ray={cluster.address}"]
        driver = subprocess.Popen(call, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        for number, kind in enumerate(KILLS, 1):
            while len(found := _results(far)) < number * n_runs // (len(KILLS) + 1):
                if driver.poll() is not None:
                    raise SystemExit(f"The sweep ended with {driver.returncode} before kill {number}, of a {kind}.")
                time.sleep(0.05)
            written |= {path: stamp for path, stamp in found.items() if path not in written}
            killed.append({"kind": kind, "finished_runs": len(found), "second": round(time.perf_counter() - began, 1)})
            if kind == "driver":
                driver.kill()
                driver.wait()
                ends += 1
                driver = subprocess.Popen(call, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
            elif kind == "worker":
                _kill_a_worker()
            else:
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
                cluster.add_node(**node)
        status = driver.wait()
    seconds = time.perf_counter() - began
    last = _results(far)
    local = measured(*sweep, f"--out={folder / 'local'}")
    return {
        "runs": n_runs,
        "runs_of_a_group": size,
        "settings": list(options or SMALL),
        "kills": killed,
        "drivers": ends + 1,
        "exit_status_of_the_last_driver": status,
        "finished_runs": len(last),
        "results_written_again": sum(last.get(path) != stamp for path, stamp in written.items()),
        "wall_seconds": round(seconds, 2),
        "local": local,
        "results_equal_bit_for_bit": len(last) == n_runs and _metrics(far) == _metrics(folder / "local"),
    }


def _results(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the finished runs, with the file and the time of their results."""
    found = {path: path.stat() for path in folder.glob("*/result.json")}
    return {path.parent.name: (facts.st_ino, facts.st_mtime_ns) for path, facts in found.items()}


def _kill_a_worker() -> None:
    """Kill one process of this benchmark's cluster that computes a group."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for pid in _tree(os.getpid()):
            try:
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::compute_group"):
                    os.kill(pid, signal.SIGKILL)
                    return
            except OSError:  # it has ended
                continue
        time.sleep(0.05)
    raise SystemExit("No worker computed a group within a minute.")


# ---------------------------------------------------------------- the filter


def make_features(folder: Path, n: int) -> None:
    """Write features around one centre per label; a part of the given labels is wrong."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    dice = np.random.default_rng(0)
    centres = dice.normal(size=(N_LABELS, N_FEATURES)).astype(np.float32)
    for i, part in enumerate(np.array_split(np.arange(n), N_FILES)):
        true = dice.integers(0, N_LABELS, len(part))
        features = centres[true] + dice.normal(size=(len(part), N_FEATURES)).astype(np.float32)
        wrong = dice.random(len(part)) < WRONG
        given = np.where(wrong, dice.integers(0, N_LABELS, len(part)), true)
        columns = {f"f{j}": features[:, j] for j in range(N_FEATURES)}
        pq.write_table(pa.table(columns | {"label": given}), folder / f"part-{i:02}.parquet")


def filtering(folder: Path, n: int, store: int, *, is_compared: bool) -> dict[str, Any]:
    """Score features on a cluster of two nodes and in one process, and compare the scores."""
    source = folder / f"features-{n}"
    if not source.exists():
        make_features(source, n)
    for name in ("ray", "local.parquet"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).unlink(missing_ok=True)
    call = ["filter", source, "--prepare=none"]
    with nodes(2, store) as (cluster, _):
        far = measured(*call, f"--out={folder / 'ray'}", f"--cluster=ray={cluster.address}")
    print("ray  ", far, flush=True)
    found = {"samples": n, "files": N_FILES, "features": N_FEATURES, "labels": N_LABELS, "ray": far}
    found["gigabytes"] = round(sum(path.stat().st_size for path in source.iterdir()) / 1e9, 3)
    found["object_store_mb_of_a_node"] = store // 1_000_000
    if is_compared:
        found["local"] = measured(*call, f"--out={folder / 'local.parquet'}")
        print("local", found["local"], flush=True)
        found["equal_bit_for_bit"] = _same_scores(folder / "ray", folder / "local.parquet")
    return found


def _same_scores(one: Path, other: Path) -> bool:
    import pyarrow.parquet as pq

    names = ["row", "label", "clean_probability", "centrality", "selected"]
    a, b = pq.read_table(one, columns=names), pq.read_table(other, columns=names)
    return all(a[name].to_numpy().tobytes() == b[name].to_numpy().tobytes() for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("overhead", "kills", "filter"))
    parser.add_argument("--pairs", type=int, default=3, help="of a local and a Ray sweep")
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--group-size", type=int, default=4, help="runs of a group")
    parser.add_argument("--runs", type=int, default=200, help="of `kills`")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="setting of the runs")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--store", type=int, default=500_000_000, help="bytes of the object store of a node")
    parser.add_argument("--no-local", action="store_true", help="do not filter in one process")
    parser.add_argument("--folder", type=Path, help="working folder that is kept. (default: a temporary one)")
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        found = (
            overhead(folder, options.pairs, options.groups, options.group_size, options.settings)
            if options.part == "overhead"
            else kills(folder, options.runs, options.group_size, options.settings)
            if options.part == "kills"
            else filtering(folder, options.samples, options.store, is_compared=not options.no_local)
        )
    text = json.dumps(found, indent=2)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
