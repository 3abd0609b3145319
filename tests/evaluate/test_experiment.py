import json
import shutil
from dataclasses import MISSING, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from purereplay.cli.options import run_settings, sweep_settings
from purereplay.data.datasets import load, validation
from purereplay.errors import UserError
from purereplay.evaluate import experiment as experiments
from purereplay.evaluate import preparation, running
from purereplay.evaluate.estimate import count_steps, estimate
from purereplay.evaluate.experiment import Experiment, prepare
from purereplay.evaluate.identity import result_key, run_key
from purereplay.evaluate.preparation import make_stream
from purereplay.evaluate.rates import task_ends
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import FORMAT, RunSettings, on_device, resolve
from purereplay.learners import registry
from purereplay.nets.engine import Engine
from purereplay.nets.lockstep import drive, drive_together
from purereplay.report.pictures import draw_run
from purereplay.report.runs import show_result

TINY = {"expert_epochs": "3", "base_epochs": "2", "finetune_epochs": "2", "hidden": "16", "projection_size": "8"}


def tiny(**more) -> RunSettings:
    return resolve(dataset="digits", preset_name="demo", overrides=TINY, device="cpu", **more)


def finish(experiment: Experiment, on_line=None) -> dict:
    """Run to the end."""
    return drive(experiment.running(on_line), experiment.engine, experiment.account)


def started(path: Path) -> RunDirectory:
    """A folder in which a run was started."""
    run = RunDirectory(path)
    run.create(tiny())
    return run


def sweep_runs(out: Path, settings: dict[str, str] | None = None, **lists) -> dict[Path, RunSettings]:
    """The runs of `purereplay sweep` with these options."""
    usual = {"dataset": "digits", "noise": None, "noise_rate": "0.4", "episode": "A", "learner": "spr", "budget": "1"}
    usual |= {"preset": "demo", "seed": "1", "device": "cpu", "precision": "auto"}
    usual |= {"features_file": None, "encoder": None}
    usual |= {"validation": False, "evaluate": "tasks", "robust": None, "filter_": None, "graphs": None}
    return sweep_settings(out, usual | {"set_": [f"{k}={v}" for k, v in (settings or {}).items()]} | lists)


def measured(path: Path) -> dict:
    """result.json without what may differ: the times, and the digest that covers them."""
    result = json.loads((path / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("seconds", "digest")}


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "whole"
    finish(prepare(tiny(), path))
    return path


def test_a_run_writes_what_it_promises(undisturbed):
    result = json.loads((undisturbed / "result.json").read_text())
    for key in ("accuracy", "purity", "filtered_noise", "forgetting", "passed_noise", "stream_noise"):
        assert isinstance(result[key], float)
    assert len(result["task_accuracies"]) == 5 and len(result["class_accuracies"]) == 10
    assert set(result["seconds"]) == {"expert", "base", "finetune", "other", "total"}
    assert result["versions"]["torch"] == torch.__version__ and result["device"].startswith("cpu")
    assert result["stream_noise"] == pytest.approx(0.4, abs=0.01)
    assert result["changed"] == {name: int(value) for name, value in TINY.items()} and result["judged_on"] == "test"
    lines = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines].count("task") == 5
    assert [line["buffer"] for line in lines if line["event"] == "buffer"] == list(range(15))
    assert sum(line["n"] for line in lines if line["event"] == "buffer") == 1437  # the tail too
    settings = json.loads((undisturbed / "settings.json").read_text())
    assert settings["options"]["expert_epochs"] == 3 and settings["options"]["delayed_size"] == 100
    assert not any(p.suffix in (".pkl", ".pt", ".pth") for p in undisturbed.rglob("*"))


def test_the_workload_counts_the_steps_that_are_taken(undisturbed):
    result = json.loads((undisturbed / "result.json").read_text())
    counted = count_steps(tiny(), (1437,))
    assert result["steps"]["expert"] == counted.steps["expert"] == 15 * 3
    assert counted.n_buffers == 15
    assert counted.steps["base"] >= result["steps"]["base"] >= counted.steps["base"] - 2 * 2 * 2  # P fills up first


def test_an_evaluation_at_the_end_counts_one_classifier():
    ends = tuple(range(287, 1436, 287))
    runs = [resolve(dataset="digits", learner="gdumb", device="cpu", evaluate=e) for e in ("tasks", "end")]
    every, once = (count_steps(run, ends) for run in runs)
    assert every.steps["scratch"] == 5 * once.steps["scratch"] > 0


def test_the_tenth_for_validation_is_not_in_the_stream():
    run = resolve(dataset="digits", preset_name="demo", device="cpu", validation=True)
    _, stream = make_stream(run, preparation.load(run))
    assert count_steps(run, task_ends(run)).n_buffers == count_steps(run, stream.task_ends).n_buffers == 13


def test_an_estimate_of_a_stream_that_fills_no_buffer(tmp_path):
    run = resolve(dataset="digits", device="cpu", overrides={"tail": "drop", "delayed_size": "2000", "hidden": "8"})
    experiment = prepare(run, tmp_path / "run")
    found = estimate(run, experiment.learner, experiment.stream.task_ends)
    assert found.workload.n_buffers == 0 and set(found.seconds_per_step) == {"finetune"}


def test_same_seed_same_result_other_seed_another(undisturbed, tmp_path):
    finish(prepare(tiny(), tmp_path / "again"))
    finish(prepare(tiny(seed=2), tmp_path / "other"))
    assert measured(tmp_path / "again") == measured(undisturbed)
    assert measured(tmp_path / "other")["class_accuracies"] != measured(undisturbed)["class_accuracies"]


@pytest.mark.parametrize("at", [1, 2, 7, 16, 20])
def test_resumed_after_any_line_it_ends_the_same(undisturbed, tmp_path, at, monkeypatch):
    """The process dies right after its at-th line, when the last checkpoint may be some lines older."""
    for name, value in (("_FIRST_CHECKPOINT", 0.2), ("_CHECKPOINT_SECONDS", 0.2), ("_CHECKPOINT_SHARE", 5)):
        monkeypatch.setattr(experiments, name, value)
    path = tmp_path / "run"

    def die(line):
        nonlocal n
        n += 1
        if n == at:
            raise Stop

    n = 0
    first = prepare(tiny(), path)
    monkeypatch.setattr(first, "_save", lambda: None) if at == 2 else None  # killed before any checkpoint
    with pytest.raises(Stop):
        finish(first, die)
    _, settings = RunDirectory.open(path)
    assert settings == tiny()
    finish(prepare(settings, path, resume=True))
    assert measured(path) == measured(undisturbed)
    assert (path / "metrics.jsonl").read_text() == (undisturbed / "metrics.jsonl").read_text()


def test_interrupted_inside_a_training_loop_it_goes_on(undisturbed, tmp_path):
    path = tmp_path / "run"
    for patience in (3, 9, 14):  # requests for training before the interruption
        resume = path.exists()
        experiment = prepare(tiny(), path, resume=resume)
        train, n = experiment.engine.train, 0

        def counted(jobs, train=train, patience=patience):
            nonlocal n
            n += 1
            if n == patience:
                raise Stop
            return train(jobs)

        experiment.engine.train = counted  # type: ignore[method-assign]
        with pytest.raises(Stop):
            finish(experiment)
    finish(prepare(tiny(), path, resume=True))
    assert measured(path) == measured(undisturbed)


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, [1.25, 10.25, 10.25, 50.25, 10.25]), (0.1, [1.25, 50.25, 50.25, 500.25, 50.25])]
)
def test_checkpoints_come_soon_at_first_and_then_seldom(tmp_path, monkeypatch, share, expected):
    """The first after a second; then ten seconds apart, or after fifty times of the run's own time that the last one
    took: of runs side by side, that is a share of the time that passes."""
    experiment = prepare(tiny(), tmp_path / "run")
    now, costs, waits = 0.0, [0.1, 0.1, 1.0, 0.1, 0.1], []

    def write(*_: object) -> None:
        nonlocal now
        waits.append(now - experiment._saved_at)
        now += costs[len(waits) - 1]

    experiment._saved_at = now
    monkeypatch.setattr(experiments.time, "perf_counter", lambda: now)
    monkeypatch.setattr(experiment.run, "save", write)
    while len(waits) < len(costs):
        now += 0.25
        experiment.account.book("expert", 0.25 * share)
        experiment._maybe_save()
    assert waits == pytest.approx(expected, abs=0.3)


def test_lines_after_the_checkpoint_are_dropped(tmp_path):
    run = started(tmp_path / "run")
    unknown = dict.fromkeys(
        ("noise", "n_passed", "passed_noise", "purity", "filtered_noise", "expert_loss", "base_loss")
    )
    line = {"event": "buffer", "buffer": 0, "n": 100, "n_purified": 0, **unknown}
    run.record(line)
    run.save({"x": torch.tensor(1)}, {})
    run.record(line | {"buffer": 1})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "bu')  # a line cut in the middle by a kill
    again, _ = RunDirectory.open(tmp_path / "run")
    again.restore()
    assert [line["buffer"] for line in again.lines] == [0]
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == json.dumps(line) + "\n"


def test_damaged_run_folders_are_one_sentence(undisturbed, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(undisturbed, path)
    shutil.rmtree(path / "checkpoints")
    (path / "result.json").unlink()
    finish(prepare(tiny(), path, resume=True))  # no checkpoint: it begins anew
    assert measured(path) == measured(undisturbed)
    (path / "metrics.jsonl").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        draw_run(path, tmp_path / "a.png")
    (path / "metrics.jsonl").unlink()
    with pytest.raises(
        UserError, match=r"metrics\.jsonl and result\.json belong to different runs, or one was cut short"
    ):
        draw_run(path, tmp_path / "a.png")
    with pytest.raises(UserError, match="0 lines"):
        prepare(tiny(), path, resume=True)
    settings = json.loads((path / "settings.json").read_text())
    settings["options"]["hidden"] = "x"
    (path / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="hidden must be a whole number"):
        RunDirectory.open(path)
    del settings["options"]["hidden"]
    (path / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="do not fit this version: hidden"):
        RunDirectory.open(path)


def test_a_run_is_not_overwritten_and_not_shared(tmp_path):
    run = started(tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        started(tmp_path / "run")
    with run.locked(), pytest.raises(UserError, match="Another process"), RunDirectory(tmp_path / "run").locked():
        pass


def test_noise_is_not_added_to_labels_that_come_noisy():
    assert resolve(dataset="cifar10n", device="cpu").noise == "none"
    assert resolve(dataset="digits", device="cpu").noise == "symmetric"
    digits = load("digits")
    human = replace(digits, given_labels=digits.true_labels)  # as if the labels came noisy
    with pytest.raises(UserError, match="already noisy"):
        make_stream(resolve(dataset="digits", noise="symmetric", device="cpu"), human)


def test_another_stream_than_the_one_it_began_with_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run"
    experiment = prepare(tiny(), path)
    experiment._save()
    with pytest.raises(UserError, match="stream differs from the one"):
        prepare(replace(tiny(), noise_rate=0.2), path, resume=True)


def test_a_run_of_an_older_format_is_refused_in_one_sentence(tmp_path):
    started(tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    for old in (1, 2, None):
        (tmp_path / "run" / "settings.json").write_text(json.dumps(settings | {"format": old}))
        with pytest.raises(UserError, match=f"The run has format {old}, this version reads format {FORMAT}."):
            RunDirectory.open(tmp_path / "run")


def test_a_run_from_before_there_was_validation_is_still_read(tmp_path):
    started(tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    del settings["validation"]
    settings["features"] = settings.pop("features_file")
    (tmp_path / "run" / "settings.json").write_text(json.dumps(settings | {"format": 3}))
    assert RunDirectory.open(tmp_path / "run")[1] == tiny()


@pytest.mark.parametrize(("name", "content"), [("settings.json", "{"), ("settings.json", '{"format": 99}')])
def test_damaged_settings_are_one_sentence(tmp_path, name, content):
    started(tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(UserError):
        RunDirectory.open(tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dataset": "nonsense"}, "nonsense"),
        ({"dataset": "digits", "learner": "nobody"}, "nobody"),
        ({"dataset": "digits", "preset_name": "best"}, "best"),
        ({"dataset": "digits", "budget": 0.0}, "budget"),
        ({"dataset": "digits", "device": "abacus"}, "abacus"),
        ({"dataset": "digits", "overrides": {"graphs": "many"}}, "graphs must be a whole number"),
        ({"dataset": "digits", "overrides": {"order": "random"}}, "filter-first, replay-first"),
        ({"dataset": "digits", "overrides": {"colour": "red"}}, "'colour' is unknown to the learner spr"),
        ({"dataset": "digits", "learner": "crs", "preset_name": "typo"}, "preset 'typo' is unknown"),
        ({"dataset": "digits", "learner": "crs", "overrides": {"gdumb_rate": "3"}}, "'gdumb_rate' is unknown to the"),
        (
            {"dataset": "digits", "learner": "crs", "overrides": {"graphs": "3"}},
            "'graphs' is unknown to the learner crs",
        ),
        (
            {"dataset": "digits", "learner": "self-replay", "overrides": {"filter": "aum"}},
            "self-replay has filter=none",
        ),
        ({"dataset": "digits", "learner": "crs", "budget": -1.0}, "budget"),
        ({"dataset": "digits", "overrides": {"delayed_size": "-3"}}, "must be at least 2"),
        ({"dataset": "digits", "overrides": {"reseed": "maybe"}}, "true or false"),
        ({"dataset": "digits", "learner": "crs", "overrides": {"replay_size": "0"}}, "replay_size must be more than 0"),
        ({"dataset": "digits", "learner": "mir", "overrides": {"candidates": "5"}}, "10 samples .* from 5"),
        (
            {"dataset": "digits", "learner": "ewc", "overrides": {"robust": "sl"}},
            "ewc takes no loss .*: choose one of crs",
        ),
    ],
)
def test_wrong_settings_are_one_sentence(arguments, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        resolve(**arguments)
    assert "\n" not in str(caught.value)


def test_presets_budget_and_datasets_fill_the_settings():
    paper = resolve(dataset="mnist", preset_name="paper", device="cpu").options
    assert (paper.delayed_size, paper.purified_size, paper.network, paper.features) == (300, 300, "mlp", "penultimate")
    scaled = resolve(dataset="cifar10", budget=0.1, device="cpu").options
    assert (scaled.expert_epochs, scaled.base_epochs, scaled.network) == (400, 300, "resnet18")
    code = resolve(dataset="cifar100", preset_name="reference", device="cpu").options
    assert (code.delayed_size, code.purified_size, code.expert_batch, code.base_batch) == (1250, 5000, 1250, 250)
    human = resolve(dataset="cifar10n-random1", device="cpu")
    assert (human.noise, human.noise_rate, human.options.delayed_size) == ("none", 0.0, 500)
    own = resolve(dataset="digits", overrides={"finetune_clip": "none", "delayed_size": "50"}, device="cpu").options
    assert own.finetune_clip is None and own.expert_batch == own.base_batch == 50


@pytest.mark.long
def test_a_sweep_gives_what_single_runs_give(tmp_path):
    runs = sweep_runs(tmp_path, TINY, noise="symmetric", noise_rate="0.2,0.4")
    assert [path.name for path in runs] == ["noise_rate-0.2", "noise_rate-0.4"]
    engine = Engine(torch.device("cpu"))
    together = [prepare(s, path, engine=engine) for path, s in runs.items()]
    results = drive_together([e.running() for e in together], engine, [e.account for e in together])
    for (path, settings), result in zip(runs.items(), results, strict=True):
        alone = finish(prepare(settings, tmp_path / "alone" / path.name))
        assert result["steps"] == alone["steps"] and set(result["seconds"]) == set(alone["seconds"])
        assert result["stream_noise"] == alone["stream_noise"]
        assert result["purity"] == pytest.approx(alone["purity"], abs=0.02)  # rounding may move a borderline sample
        assert result["accuracy"] == pytest.approx(alone["accuracy"], abs=0.05)
    assert results[0]["stream_noise"] < results[1]["stream_noise"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("seed", "1,x", "seed"),
        ("noise_rate", "a", "noise-rate"),
        ("seed", "1,1", r"contain seed-1 twice\."),
        ("seed", "1,01", r"contain seed-1 twice, also as seed-01\."),
        ("noise_rate", "0.4,.40", r"contain noise_rate-0\.4 twice, also as noise_rate-\.40\."),
        ("noise", "none:0.2,symmetric:0.2", r"none has no rate: write none instead of none:0\.2\."),
    ],
)
def test_wrong_lists_are_one_sentence(tmp_path, name, text, sentence):
    with pytest.raises(UserError, match=sentence):
        sweep_runs(tmp_path, **{name: text})


def test_a_setting_may_concern_one_learner_of_a_sweep(tmp_path):
    runs = sweep_runs(tmp_path, {"gdumb.epochs": "3,4", "hidden": "8"}, learner="crs,gdumb", preset="default")
    names = {path.name: settings.options for path, settings in runs.items()}
    assert names["learner-gdumb_gdumb.epochs-3"].epochs == 3 and names["learner-gdumb_gdumb.epochs-4"].epochs == 4
    assert names["learner-crs"].hidden == 8 and len(names) == 3
    with pytest.raises(UserError, match="unknown to the learner crs"):
        sweep_runs(tmp_path, {"epochs": "3"}, learner="crs,gdumb")
    with pytest.raises(UserError, match="unknown learner 'nobody'"):
        sweep_runs(tmp_path, {"nobody.epochs": "3"})
    with pytest.raises(UserError, match="has no effect: gdumb is not the learner of any run"):
        sweep_runs(tmp_path, {"gdumb.epochs": "3"}, learner="spr,crs")
    with pytest.raises(UserError, match="list of learner has an empty item"):
        sweep_runs(tmp_path, learner="crs,,gdumb")


@pytest.mark.parametrize(
    ("learners", "texts", "options", "sentence"),
    [
        ("crs,prs", ["lr=0.3,0.4", "crs.lr=0.1"], {}, "leave one of them out, or write prs.lr for prs."),
        ("crs,prs", ["crs.lr=0.1,0.2", "lr=0.3"], {}, "Both lr and crs.lr are given for crs"),
        ("crs", ["crs.batch-size=5,6", "batch_size=7"], {}, "Both batch_size and crs.batch_size are given for crs"),
        ("crs", ["crs.batch-size=5,6", "crs.batch_size=7"], {}, "--set crs.batch-size and --set crs.batch_size set"),
        ("crs", ["crs.robust=sl"], {"robust": "none"}, "Both robust and crs.robust are given for crs"),
    ],
)
def test_a_setting_is_given_under_one_name(tmp_path, learners, texts, options, sentence):
    """Otherwise a folder of a sweep could be named after a value that its run does not have."""
    with pytest.raises(UserError, match=sentence):
        sweep_runs(tmp_path, learner=learners, set_=texts, **options)
    if "," not in learners:
        with pytest.raises(UserError, match=sentence):
            run_settings(learner=learners, set_=texts, **options)


def test_hyphens_and_none_graphs_are_read_behind_the_name_of_a_learner(tmp_path):
    [run] = sweep_runs(tmp_path, {"crs.batch-size": "5"}, learner="crs").values()
    assert run.options.batch_size == 5
    assert [run.options.graphs for run in sweep_runs(tmp_path, {"spr.graphs": "none,5"}).values()] == [0, 5]


def test_without_noise_there_is_one_run_whatever_the_rates(tmp_path):
    runs = sweep_runs(tmp_path, noise="none,symmetric", noise_rate="0.2,0.4")
    assert {path.name: run.noise_rate for path, run in runs.items()} == {
        "noise-none": 0.0,
        "noise-symmetric_noise_rate-0.2": 0.2,
        "noise-symmetric_noise_rate-0.4": 0.4,
    }


def test_in_a_sweep_learners_without_self_supervised_epochs_have_no_budget(tmp_path):
    runs = sweep_runs(tmp_path, learner="crs,spr", budget="0.1,1")
    assert [path.name for path in runs] == ["learner-crs", "learner-spr_budget-0.1", "learner-spr_budget-1"]


@pytest.mark.gpu
def test_on_a_gpu_a_run_ends_with_the_same_bits_alone_and_in_a_sweep(tmp_path):
    noises = {"noise": "symmetric:0.2,symmetric:0.4", "budget": "0.1", "seed": "1,2"}
    runs = sweep_runs(tmp_path, device="cuda", precision="bf16", **noises)
    engine = Engine(torch.device("cuda"), precision="bf16")
    together = [prepare(s, path, engine=engine) for path, s in runs.items()]
    results = drive_together([e.running() for e in together], engine, [e.account for e in together])
    for (path, settings), result in zip(runs.items(), results, strict=True):
        alone = finish(prepare(settings, tmp_path / "alone" / path.name))
        assert {k: v for k, v in alone.items() if k != "seconds"} == {k: v for k, v in result.items() if k != "seconds"}


def test_every_noise_may_bring_its_own_rate(tmp_path):
    lists = {"dataset": "mnist", "noise": "symmetric:0.6,asymmetric:0.2", "seed": "1,2"}
    runs = sweep_runs(tmp_path, **lists)
    found = {path.name: (s.noise, s.noise_rate, s.seed) for path, s in runs.items()}
    assert found["noise-symmetric-0.6_seed-1"] == ("symmetric", 0.6, 1)
    assert found["noise-asymmetric-0.2_seed-2"] == ("asymmetric", 0.2, 2) and len(found) == 4
    clean = sweep_runs(tmp_path / "clean", **(lists | {"noise": "symmetric:0.6,none"}))  # none needs no rate
    assert {(s.noise, s.noise_rate) for s in clean.values()} == {("symmetric", 0.6), ("none", 0.0)}
    for odd in ({"noise": "symmetric:0.6,asymmetric"}, {"noise_rate": "0.2,0.4"}, {"noise": "symmetric:x"}):
        with pytest.raises(UserError, match="rate"):
            sweep_runs(tmp_path, **(lists | odd))


def test_a_run_that_moves_to_the_cpu_computes_in_float32_there():
    begun = replace(resolve(dataset="digits", device="cpu"), device="cuda", precision="bf16")
    moved = on_device(begun, "cpu")
    assert (moved.device, moved.precision) == ("cpu", "float32") and moved.options == begun.options


def test_the_cpu_computes_in_float32():
    assert resolve(dataset="digits", device="cpu").precision == "float32"
    for precision, sentence in (("bf16", "CUDA"), ("tf32", "CUDA"), ("float16", "unknown")):
        with pytest.raises(UserError, match=sentence):
            resolve(dataset="digits", device="cpu", precision=precision)


def test_estimate_counts_and_times(tmp_path):
    settings = tiny()
    experiment = prepare(settings, tmp_path / "run")
    guess = estimate(settings, experiment.learner, experiment.stream.task_ends)
    assert guess.workload == experiment.workload and guess.memory > 0
    assert 1 <= guess.side_by_side["expert"] <= guess.fit["expert"] <= 16 and guess.side_by_side["base"] == 1
    assert guess.seconds == pytest.approx(sum(guess.seconds_per_step[p] * n for p, n in guess.workload.steps.items()))


def test_every_setting_says_what_it_means():
    for entry in registry.entries():
        for field in fields(entry.settings):
            assert len(field.metadata["meaning"]) >= 8 or field.name in ("lr", "momentum"), (entry.name, field.name)
            assert bool(field.metadata["by_data"]) == (field.default is MISSING), (entry.name, field.name)
            assert field.metadata["source"] or field.metadata["meaning"]


def test_multitask_is_evaluated_once_at_the_end(tmp_path):
    chosen = {"hidden": "16", "epochs": "1"}
    settings = resolve(dataset="digits", learner="multitask", preset_name="demo", overrides=chosen, device="cpu")
    result = finish(prepare(settings, tmp_path / "run"))
    assert len(result["accuracy_after_task"]) == 1 and result["forgetting"] is None
    assert len(result["task_accuracies"]) == 5
    assert result["steps"]["scratch"] == 1437 // 16
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["task"] for line in lines if line["event"] == "task"] == [4] and lines[-1]["event"] == "task"
    show_result(tmp_path / "run", result)
    assert (tmp_path / "run" / "run.png").exists()


def test_validation_evaluates_on_training_data_that_is_not_in_the_stream(tmp_path):
    chosen = tiny(validation=True)
    digits = load("digits")
    experiment = prepare(chosen, tmp_path / "run")
    held = validation(digits).held_out
    assert 144 <= len(held) <= 150  # a tenth of each class, rounded up
    assert np.array_equal(experiment.judge.test_images.numpy(), digits.images[held])
    assert np.array_equal(experiment.judge.test_labels.numpy(), digits.true_labels[held])
    passed = experiment.stream.batch(0, len(experiment.stream)).images.flatten(1).numpy()
    kept = np.delete(digits.images, held, axis=0).reshape(len(passed), -1)
    assert np.array_equal(kept[np.lexsort(kept.T)], passed[np.lexsort(passed.T)])
    assert experiment.judge.stream_noise == pytest.approx(0.4, abs=0.01)
    result = finish(experiment)
    assert result["judged_on"] == "validation" and 0 < result["accuracy"] <= 1
    other = prepare(tiny(validation=True, seed=2), tmp_path / "other")
    assert torch.equal(other.judge.test_images, experiment.judge.test_images)  # the same tenth for every seed
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["validation"] is True


def test_nothing_is_held_out_where_the_truth_is_unknown():
    with pytest.raises(UserError, match="The true labels of digits are unknown"):
        validation(replace(load("digits"), true_labels=None))


@pytest.mark.parametrize(
    ("learner", "options"), [("gdumb", {"epochs": "3"}), ("spr", TINY | {"self_replay": "task-end"})]
)
def test_an_evaluation_at_the_end_gives_the_same_final_numbers(tmp_path, learner, options):
    found = {}
    for evaluate in ("tasks", "end"):
        settings = resolve(
            dataset="digits", preset_name="demo", learner=learner, overrides=options, device="cpu", evaluate=evaluate
        )
        found[evaluate] = running.run(settings, tmp_path / evaluate)
    tasks, end = found["tasks"], found["end"]
    assert len(tasks["accuracy_after_task"]) == 5 and len(end["accuracy_after_task"]) == 1
    assert (end["accuracy"], end["class_accuracies"]) == (tasks["accuracy"], tasks["class_accuracies"])
    assert end["forgetting"] is None and run_key(settings) == result_key(tasks)
    phase = {"gdumb": "scratch", "spr": "finetune"}[learner]
    assert end["steps"][phase] < tasks["steps"][phase] / 3
