"""Groups of runs on a cluster: plans, lost workers, too little memory, storage that is not shared; kills."""

import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from purereplay.errors import Interrupted, UserError
from purereplay.evaluate import ray_cluster
from purereplay.evaluate.executors import Local, execute_sweep
from purereplay.evaluate.plan import Group, plan_groups, plan_json
from purereplay.evaluate.ray_cluster import Outcome, RayExecutor, compute_group, on_gpus, ray_executor
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.running import Observer
from purereplay.evaluate.settings import RunSettings, resolve, to_json

TINY = {"expert_epochs": "2", "base_epochs": "1", "finetune_epochs": "1", "hidden": "8", "projection_size": "4"}


def tiny(seed: int, **more) -> RunSettings:
    return resolve(dataset="digits", preset_name="demo", device="cpu", seed=seed, **({"overrides": TINY} | more))


def runs(folder: Path, n: int) -> dict[Path, RunSettings]:
    return {folder / f"seed-{i}": tiny(i) for i in range(1, n + 1)}


def measured(folder: Path) -> dict[str, str]:
    """What each run measured, bit for bit."""
    return {path.parent.name: path.read_text() for path in sorted(folder.glob("*/metrics.jsonl"))}


# ---------------------------------------------------------------- the plan


def test_a_group_holds_runs_of_one_shape(tmp_path):
    both = runs(tmp_path, 5) | {tmp_path / f"crs-{i}": tiny(i, learner="crs", overrides={}) for i in range(3)}
    groups = plan_groups(both, 2)
    assert [len(g.runs) for g in groups] == [2, 2, 1, 2, 1] and [g.number for g in groups] == [0, 1, 2, 3, 4]
    assert all(len({s.learner for s in g.runs.values()}) == 1 for g in groups)
    assert {path for g in groups for path in g.runs} == set(both)
    assert plan_groups(both, 2) == groups and [len(g.runs) for g in plan_groups(both)] == [8]
    written = plan_json(groups, tmp_path)
    assert list(written["groups"][0]["runs"]) == ["seed-1", "seed-2"]
    assert written["groups"][3]["runs"]["crs-0"]["learner"] == "crs" and json.dumps(written)


def test_noise_does_not_split_a_group():
    jocor = {"robust": "jocor"}  # has a setting that depends on the noise
    two = {Path(str(r)): tiny(1, learner="crs", overrides=jocor, noise_rate=r) for r in (0.2, 0.4)}
    assert len(plan_groups(two, 10)) == 1


def test_runs_that_share_their_experts_are_in_one_group():
    def scf(seed, graphs):
        return tiny(seed, learner="self-centered-filter", overrides={"graphs": graphs})

    many = {Path(f"{graphs}-{seed}"): scf(seed, graphs) for graphs in (5, 0, 20) for seed in (1, 2, 3, 4)}
    groups = plan_groups(many, 6)
    assert [list(map(str, g.runs)) for g in groups] == [
        ["5-1", "0-1", "20-1", "5-2", "0-2", "20-2"],
        ["5-3", "0-3", "20-3", "5-4", "0-4", "20-4"],
    ]
    others = {Path("temperature"): tiny(1, overrides={"temperature": 0.4}), Path("plain"): tiny(1)}
    assert len(plan_groups(others, 6)) == 2  # other experts


# ---------------------------------------------------------------- a cluster that loses things


class Lost(Exception):
    pass


class FakeRay:
    """Answers each task from a list: an Outcome, or an error to raise; otherwise it computes the task here."""

    def __init__(self, answers: list[object]) -> None:
        self.answers = answers
        self.submitted: list[list[str]] = []
        self.cancelled: list[object] = []
        self.exceptions = SimpleNamespace(
            RayError=Lost, OutOfMemoryError=type("Killed", (Lost,), {}), RayTaskError=type("Raised", (Lost,), {})
        )

    def remote(self, function):
        def submit(*arguments):
            self.submitted.append(sorted(Path(path).name for path in arguments[0]))
            return partial(function, *arguments)

        return SimpleNamespace(options=lambda **kinds: SimpleNamespace(remote=submit))

    def wait(self, references, num_returns, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return reference() if answer is None else answer

    def cancel(self, reference, force):
        self.cancelled.append(reference)


def execute(fake: FakeRay, groups: list[Group], tmp_path: Path, observer: Observer | None = None) -> list[UserError]:
    (tmp_path / "plan.json").write_text("{}")
    done: list[int] = []
    executor = RayExecutor(fake, observer or Observer(), tmp_path / "plan.json")
    failures = executor.execute(groups, lambda group: done.append(group.number))
    assert sorted(set(done)) == [g.number for g in groups]
    return failures


def test_a_lost_worker_is_replaced_and_nothing_is_computed_twice(tmp_path):
    wanted, groups = runs(tmp_path, 3), plan_groups(runs(tmp_path, 3), 2)
    fake = FakeRay([Lost("worker died"), None, Lost("node died"), None])
    assert execute(fake, groups, tmp_path) == []
    assert len(fake.submitted) == 4 and all(RunDirectory(path).result() is not None for path in wanted)
    local = tmp_path / "local"
    Local().execute(plan_groups(runs(local, 3), 2), lambda group: None)
    assert measured(tmp_path) == measured(local)
    again = FakeRay([])
    execute(again, groups, tmp_path)
    assert again.submitted == []  # all runs are finished


def test_a_group_that_is_lost_again_and_again_fails(tmp_path):
    fake = FakeRay([Lost("worker died")] * 5)
    [failure] = execute(fake, plan_groups(runs(tmp_path, 1), 1), tmp_path)
    assert "The worker of group 0 was lost 5 times: worker died." in str(failure)


def test_too_little_memory_halves_the_group(tmp_path):
    fake = FakeRay([Outcome(no_memory=True)])
    assert execute(fake, plan_groups(runs(tmp_path, 4), 4), tmp_path) == []
    assert [len(names) for names in fake.submitted] == [4, 2, 2]
    killed = FakeRay([])
    killed.answers = [killed.exceptions.OutOfMemoryError("killed")]
    [failure] = execute(killed, plan_groups({tmp_path / "other": tiny(9)}, 4), tmp_path)
    assert "not enough memory for the run of group 0" in str(failure)


def test_a_failure_of_one_group_does_not_stop_the_others(tmp_path):
    fake = FakeRay([Outcome(failure="one run failed")])
    [failure] = execute(fake, plan_groups(runs(tmp_path, 4), 2), tmp_path)
    assert str(failure) == "one run failed" and len(measured(tmp_path)) == 2


def test_an_exception_without_a_message_is_named_and_stops_no_other_group(tmp_path):
    fake = FakeRay([])
    raised = fake.exceptions.RayTaskError()
    raised.cause = AssertionError()
    fake.answers = [raised]
    [failure] = execute(fake, plan_groups(runs(tmp_path, 4), 2), tmp_path)
    assert str(failure) == "The task of group 0 failed: AssertionError." and len(measured(tmp_path)) == 2


def test_an_interrupt_cancels_the_tasks(tmp_path):
    class Stop(Observer):
        def waiting(self) -> None:
            raise Interrupted("Stopped.")

    fake = FakeRay([])
    with pytest.raises(Interrupted):
        execute(fake, plan_groups(runs(tmp_path, 4), 2), tmp_path, Stop())
    assert len(fake.cancelled) == 2


def test_without_shared_storage_the_files_are_sent_back(tmp_path):
    far, here = tmp_path / "far", runs(tmp_path / "here", 2)
    task = {str(path): to_json(settings) for path, settings in here.items()}
    outcome = compute_group(task, str(far / "plan.json"), "another digest", 1)
    assert set(outcome.files) == set(task) and not (tmp_path / "here").exists()
    fake = FakeRay([outcome])
    assert execute(fake, plan_groups(here, 2), tmp_path) == []
    assert all(RunDirectory(path).result()["seed"] == settings.seed for path, settings in here.items())
    Local().execute(plan_groups(runs(tmp_path / "local", 2), 2), lambda group: None)
    assert measured(tmp_path / "here") == measured(tmp_path / "local")


def test_a_folder_that_another_worker_still_holds_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_LOCK_SECONDS", 0.1)
    [(path, settings)] = runs(tmp_path, 1).items()
    with RunDirectory(path).locked():
        assert "Another process is working" in ray_cluster._compute({path: settings}).failure
    assert ray_cluster._compute({path: settings}) == Outcome()


def test_runs_for_gpus_that_are_elsewhere():
    far = on_gpus(tiny(1))
    assert (far.device, far.precision, far.lookahead) == ("cuda", "bf16", 64) and far.options == tiny(1).options


def test_an_unknown_cluster_is_refused(tmp_path):
    with pytest.raises(UserError, match="The cluster 'slurm' is unknown: use ray, or ray=ADDRESS"):
        ray_executor("slurm", Observer(), tmp_path)


def test_a_local_sweep_in_groups_is_the_same_sweep(tmp_path):
    execute_sweep(runs(tmp_path / "a", 3), tmp_path / "a", Observer(), group_size=2)
    execute_sweep(runs(tmp_path / "b", 3), tmp_path / "b", Observer())
    assert measured(tmp_path / "a") == measured(tmp_path / "b") and (tmp_path / "a" / "plan.json").exists()


# ---------------------------------------------------------------- a real cluster of two nodes

N_RUNS = int(os.environ.get("PUREREPLAY_CLUSTER_RUNS", "200"))


@pytest.mark.slow
def test_kills_of_worker_node_and_driver_change_nothing(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.syspath_prepend(Path(__file__).parent.parent.parent / "benchmarks")
    for name in ("OMP_NUM_THREADS", "RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"):  # which `nodes` sets
        monkeypatch.setenv(name, os.environ.get(name, ""))
    import cluster

    found = cluster.kills(tmp_path, N_RUNS, max(2, N_RUNS // 20), [])
    fifths = [kill["finished_runs"] * 5 // N_RUNS for kill in found["kills"]]
    assert [kill["kind"] for kill in found["kills"]] == ["driver", "worker", "node", "driver"]
    assert fifths == sorted(fifths) and fifths[0] >= 1 and found["kills"][-1]["finished_runs"] < N_RUNS
    assert found["exit_status_of_the_last_driver"] == 0 and found["results_written_again"] == 0
    assert found["finished_runs"] == len(measured(tmp_path / "ray")) == N_RUNS
    assert measured(tmp_path / "ray") == measured(tmp_path / "local")
