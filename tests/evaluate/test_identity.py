"""Identity of runs: settings of a result, keys, the store."""

import json
import shutil
from pathlib import Path

import pytest

from purereplay.errors import UserError
from purereplay.evaluate import running
from purereplay.evaluate.compare import collect
from purereplay.evaluate.identity import result_key, run_key, settings_of
from purereplay.evaluate.records import by_key, read_results
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings, resolve
from purereplay.evaluate.store import Store

ROOT = Path(__file__).parent.parent.parent
TINY = {"expert_epochs": "2", "base_epochs": "1", "finetune_epochs": "1", "hidden": "8", "projection_size": "4"}


def tiny(learner: str = "spr", **more) -> RunSettings:
    overrides = TINY if "spr" in learner else {"hidden": "8"}
    given = {"overrides": overrides | more.pop("overrides", {})} | more
    return resolve(dataset="digits", preset_name="demo", learner=learner, device="cpu", **given)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> dict[Path, RunSettings]:
    runs = {name: tiny(name.partition("-")[0], seed=int(name[-1])) for name in ("spr-1", "crs-1", "crs-2")}
    paths = {tmp_path_factory.mktemp("runs") / name: settings for name, settings in runs.items()}
    for path, settings in paths.items():
        running.run(settings, path)
    return paths


def test_a_result_has_the_key_of_its_run(finished):
    for path, settings in finished.items():
        result = RunDirectory(path).result()
        assert result_key(result) == run_key(settings)
        assert settings_of(result).options == settings.options
        del result["options"]  # as in version 0.1.0, which wrote the changed ones only
        assert result_key(result) == run_key(settings)


def test_a_result_holds_the_samples_and_measures_of_the_end(finished):
    for path, settings in finished.items():
        result, lines = RunDirectory(path).result(), RunDirectory(path).read_lines()
        assert lines[-1]["event"] == "memory" and len(lines[-1]["index"]) == result["n_purified"]
        matrix = result["accuracy_matrix"]
        assert [len(row) for row in matrix] == [5] * 5 and matrix[-1] == result["task_accuracies"]
        assert result["backward_transfer"] == -result["forgetting"] >= -result["forgetting_max"]
        assert result["options"]["hidden"] == settings.options.hidden


@pytest.mark.parametrize(
    "changed",
    [{"noise_rate": 0.2}, {"validation": True}, {"episode": "B"}, {"overrides": {"graphs": "3"}}, {"noise": "none"}],
)
def test_what_decides_the_numbers_is_in_the_key(changed):
    assert run_key(tiny(**changed)).cell != run_key(tiny()).cell


def test_what_changes_nothing_is_not_in_the_key():
    assert run_key(tiny(precision="float32")) == run_key(tiny())
    assert run_key(tiny(seed=2)).cell == run_key(tiny()).cell and run_key(tiny(seed=2)) != run_key(tiny())
    for learner, name, value in (("crs", "pencil_lr", "7"), ("self-replay", "graphs", "9"), ("spr", "aum_epochs", "3")):
        assert run_key(tiny(learner, overrides={name: value})) == run_key(tiny(learner))
    pencil = {"robust": "pencil"}
    assert run_key(tiny("crs", overrides=pencil | {"pencil_lr": "7"})) != run_key(tiny("crs", overrides=pencil))


def test_own_features_are_in_the_key(tmp_path):
    own = tiny(features_file=str(tmp_path / "a.npz"))
    assert run_key(own, "one") != run_key(own, "two")
    assert run_key(own, "one") == run_key(tiny(features_file="elsewhere.npz"), "one")


def test_an_option_that_came_later_has_the_value_of_earlier_runs(tmp_path):
    """The preset demo has distillation=1 now; runs from before the setting had none."""
    with_it = tiny("pure-replay", seed=1)
    path = tmp_path / "run"
    running.run(with_it, path)
    result = RunDirectory(path).result()
    assert settings_of(result) is not None and settings_of(result).options.distillation == 1
    del result["options"]["distillation"]
    earlier = settings_of(result)
    assert earlier.options.distillation == 0 and result_key(result) != run_key(with_it)
    file = tmp_path / "kept.jsonl"
    result.pop("digest", None)
    file.write_text(json.dumps(result) + "\n")
    assert [name for name, _ in collect([file], "accuracy")] != [name for name, _ in collect([path], "accuracy")]


def test_a_result_in_the_folder_of_another_run_is_refused(finished, tmp_path):
    one, other = (path for path in finished if "crs" in path.name)
    mixed = shutil.copytree(one, tmp_path / "mixed")
    shutil.copy(other / "result.json", mixed)
    with pytest.raises(UserError, match=r"settings\.json and result\.json in .*mixed belong to different runs\."):
        collect([mixed], "accuracy")


def test_every_kept_result_has_settings():
    results = read_results([ROOT / "results"])
    assert len(results) > 800
    assert all(settings_of(result) is not None for result in results)


def test_a_result_of_a_gpu_comes_before_one_of_a_cpu(finished):
    result = RunDirectory(next(iter(finished))).result()
    gpu = result | {"device": "NVIDIA H200", "precision": "bf16"}
    former = {name: value for name, value in gpu.items() if name != "accuracy_matrix"}
    for order in ([result, gpu], [gpu, result]):
        assert list(by_key(order).values()) == [gpu]
    for order in ([result, former], [former, result]):  # tables prefer the GPU, curves what measured more
        assert list(by_key(order).values()) == [former] and list(by_key(order, richest=True).values()) == [result]


def test_results_of_one_run_that_differ_are_named(finished, tmp_path, caplog):
    result = RunDirectory(next(iter(finished))).result()
    other = result | {"accuracy": result["accuracy"] / 2}
    rounded = result | {"accuracy": result["accuracy"] + 1e-9}
    on_gpu = other | {"device": "NVIDIA H200", "precision": "bf16"}  # another kind of device rounds differently
    for name, results in (("a", [result]), ("b", [rounded, other]), ("c", [on_gpu])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in results))
    a, b, c = (tmp_path / f"{name}.jsonl" for name in "abc")
    reads = [lambda *paths: collect([*paths], "accuracy"), lambda *paths: read_results(paths)]
    for read in (*reads, lambda *paths: Store(tmp_path / "store", paths)):
        caplog.clear()
        read(a, c)
        assert not caplog.messages
        read(a, b)
        [said] = caplog.messages
        assert f"in {a}, line 1 and {other['accuracy']:.6g} in {b}, line 2" in said
    for paths in ([a, c], [c, a]):  # the order of reading decides nothing between kinds of devices
        [cell] = collect(paths, "accuracy").values()
        assert cell.values == [100 * on_gpu["accuracy"]]


# ---------------------------------------------------------------- the store


def test_the_store_has_what_it_was_given_and_what_lies_elsewhere(finished, tmp_path):
    (first, one), (second, two), (third, _) = finished.items()
    (tmp_path / "kept.jsonl").write_text(json.dumps(RunDirectory(first).result()) + "\n")
    store = Store(tmp_path / "store", [tmp_path / "kept.jsonl", tmp_path / "missing"])
    assert store.result(one) is not None and store.result(two) is None
    store.add(RunDirectory(second).result())
    store.add(RunDirectory(second).result())  # once only
    store.add(RunDirectory(first).result())  # it is known from elsewhere
    again = Store(tmp_path / "store", [tmp_path / "kept.jsonl"])
    assert len(again.finished) == 2 and again.result(two)["accuracy"] == RunDirectory(second).result()["accuracy"]
    assert len((tmp_path / "store" / "results.jsonl").read_text().splitlines()) == 1
    cells = collect([tmp_path / "store", tmp_path / "kept.jsonl", third], "accuracy")
    assert sorted(len(cell.values) for cell in cells.values()) == [1, 2]  # spr, and two seeds of crs


def test_a_line_that_a_kill_cut_short_is_skipped(finished, tmp_path):
    (first, one), (second, two), _ = finished.items()
    store = Store(tmp_path)
    store.add(RunDirectory(first).result())
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"dataset": "dig')
    store = Store(tmp_path)
    assert store.result(one) is not None and store.result(two) is None
    assert len(collect([tmp_path / "results.jsonl"], "accuracy")) == 1  # the same file by its name
    store.add(RunDirectory(second).result())
    assert len(Store(tmp_path).finished) == 2
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-1])  # a whole line without its end
    Store(tmp_path).add(RunDirectory(next(reversed(finished))).result())
    assert len(Store(tmp_path).finished) == 3 and len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("damage", [b"{", b"", b"\xff", b"[]", b'{"seed": NaN}'])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_damaged_line_is_named_wherever_the_results_are(finished, tmp_path, damage, at):
    lines = [json.dumps(RunDirectory(path).result()).encode() + b"\n" for path in finished][:2]
    lines.insert(at, damage + b"\n")
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines))
    said = rf"^Line {at + 1} of .*results\.jsonl is damaged \((?!.*line 1).*\): remove it\.$"
    reads = [lambda: Store(tmp_path), lambda: Store(tmp_path / "other", [tmp_path])]
    for read in (*reads, lambda: read_results([tmp_path]), lambda: collect([path], "accuracy")):
        with pytest.raises(UserError, match=said):
            read()


def test_a_file_without_a_whole_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{\n{\n")
    with pytest.raises(UserError, match=r"^Line 1 of .*a\.jsonl is damaged"):
        read_results([tmp_path])
    path.write_text('{"dataset": "dig')  # a kill cut the first line of a store short
    with pytest.raises(UserError, match=r"None of these holds a finished run\."):
        read_results([tmp_path])
    with pytest.raises(UserError, match=r"a\.jsonl holds no results: its only line is cut short or damaged\."):
        read_results([path])


def test_a_changed_result_is_refused(finished, tmp_path):
    store = Store(tmp_path)
    store.add(RunDirectory(next(iter(finished))).result())
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text().replace('"accuracy": 0.', '"accuracy": 0.1', 1))
    with pytest.raises(UserError, match="does not match its digest"):
        Store(tmp_path)


def test_finished_folders_are_taken_into_the_store(tmp_path):
    store, settings = Store(tmp_path), tiny()
    path = store.path_for(settings)
    with store.locked():
        running.run(settings, path)
        assert Store(tmp_path).result(settings) is not None  # a kill now loses nothing
        assert store.take_finished() == [path]
        with pytest.raises(UserError, match="Another process computes runs"), Store(tmp_path).locked():
            pass
    assert not list((path / "checkpoints").iterdir()) and len(RunDirectory(path).read_lines()) > 5
    assert store.result(settings) == RunDirectory(path).result()
