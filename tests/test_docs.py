"""The documents say what is there: links lead somewhere, names exist, the README's Python runs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits

from purereplay.learners.baselines.settings import ONLINE_RATES, RivalSettings
from purereplay.learners.settings import PRESETS
from purereplay.paper.beside import beside, cells_of, read_results
from purereplay.paper.numbers import paper_table

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "REPRODUCTION.md", "docs/walkthrough.md")]
DOCUMENTS += [ROOT / "docs" / name for name in ("performance.md", "your-data.md", "estimator.md", "filter.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere_and_named_things_are_there(document):
    text = document.read_text()
    links = re.findall(r"\[(`?)([^\]`]+)`?\]\(([^)#]+)\)", text)
    assert links or document.name == "CONTRIBUTING.md"
    for code, name, target in links:
        if target.startswith("http"):
            continue
        path = (document.parent / target).resolve()
        assert path.exists(), f"{document.name} links to {target}"
        if code:  # a named function or class: `SPR.work`
            last = name.rpartition(".")[2]
            assert re.search(rf"(def|class) {last}\b", path.read_text()), f"{name} is not in {target}"


def test_file_map_names_what_exists():
    tree = (ROOT / "README.md").read_text().split("```\nsrc/purereplay/\n")[1].split("```")[0]
    for line in tree.splitlines():
        name = line.split()[0]
        parent = ROOT / "src" / "purereplay" if line.startswith("  ") else ROOT
        assert (parent / name).exists(), name


def test_the_readmes_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2 and len(blocks[0].strip().splitlines()) <= 10
    digits = load_digits()
    images = torch.from_numpy(np.round(digits.images * 255 / 16).astype(np.uint8))[:, None]
    labels, index = torch.from_numpy(digits.target).long(), torch.arange(len(images))
    batches = [tuple(t[i : i + 40] for t in (images, labels, index)) for i in (0, 40, 80)]
    quick = blocks[0].replace('preset="demo"', 'preset="demo", expert_epochs=20, base_epochs=5')
    names = {"batches": batches, "new_images": images[200:210]}
    exec(quick, names)
    assert names["predicted"].shape == (10,) and "suspects" in names
    names = {"features": digits.data[:200], "labels": digits.target[:200]}
    exec(blocks[1], names)
    assert names["p"].shape == (200,) and 0 <= names["p"].min() <= names["p"].max() <= 1


def test_the_filters_python_runs():
    alone, images, together = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "filter.md").read_text(), re.DOTALL)
    digits = load_digits()
    names = {"features": digits.data[:200], "labels": digits.target[:200]}
    exec(alone, names)
    assert names["suspects"].shape == (100,) and names["mask"].shape == (200,) and names["mask"].dtype == bool
    names = {"images": (digits.images[:200, None] * 15.9).astype(np.uint8), "labels": digits.target[:200]}
    exec(images, names)
    assert names["judged"].clean_probability_.shape == (200,)
    names["of_a_network"] = digits.data[:200].astype(np.float32)
    exec(together, names)
    assert names["features"].shape == (200, 64) and names["features"].dtype == np.float32


def test_the_readmes_commands_exist():
    from typer.main import get_command

    from purereplay.cli import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    used = set(re.findall(r"^purereplay (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert used and used <= known


MEASURES = {
    "accuracy": "accuracy",
    "filtered noise": "filtered_noise",
    "purity of P": "purity",
    "noise in what passes the filter": "passed_noise",
    "forgetting": "forgetting",
}


WITH_OWN_TEST = ("What the rate decides", "Why some rivals", "SPR and rivals", "Without experts", "Experts and patches")


def test_reproduced_numbers_are_those_of_the_result_files():
    """Each section's table, recomputed from the files that it links to."""
    checked = 0
    for section in sections():
        if section.startswith(WITH_OWN_TEST):
            continue
        results = linked_results(section)
        for name, said in re.findall(r"^\| ([^|,]+?) \| ([\d.]+ ± [\d.]+) \|", section, re.MULTILINE):
            values = 100 * np.array([r[MEASURES[name]] for r in results])
            assert said == f"{values.mean():.1f} ± {values.std(ddof=1):.1f}", name
            checked += 1
        for name, said in re.findall(r"^\| ([^|]+), here \| ([^\n]+) \|$", section, re.MULTILINE):
            cells = [cell.strip() for cell in said.split("|")]
            assert cells == by_noise(results, MEASURES[name]), name
            checked += len(cells)
        assert len(results) >= 3
    assert checked >= 15


def sections() -> list[str]:
    return re.split(r"^## ", (ROOT / "REPRODUCTION.md").read_text(), flags=re.MULTILINE)[1:]


def linked_results(section: str) -> list[dict]:
    """Of the files and folders that the paragraph names which begins with "Result files"."""
    paragraph = re.search(r"^Result files: .*?(?=\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    assert paragraph, section.splitlines()[0]
    first = paragraph[0].split(". ")[0]  # what comes after may link to what it compares with
    paths = [ROOT / name for name in re.findall(r"\]\((results/[^)]+)\)", first)]
    return read_results([file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])])


def test_tables_beside_the_papers_are_what_the_command_above_them_prints():
    found = re.findall(
        r"^purereplay paper ([^\n]+) --markdown\n```\n\n((?:\|[^\n]+\n)+)",
        (ROOT / "REPRODUCTION.md").read_text(),
        re.MULTILINE,
    )
    assert len(found) >= 3
    for arguments, said in found:
        names, _, rest = arguments.partition(" --table ")
        paths = [path for name in names.split() for path in sorted(ROOT.glob(name))]
        table = paper_table(rest or "overall_accuracy", "mnist")
        lines = beside(table, cells_of(table, read_results(paths)))
        expected = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
        assert said.splitlines() == [f"| {' | '.join(line)} |" for line in expected], arguments


def test_rates_are_those_of_the_result_files():
    [section] = [section for section in sections() if section.startswith("What the rate decides")]
    results = linked_results(section)
    assert all(r["judged_on"] == "validation" and r["learner"] == "crs" for r in results)
    rows = re.findall(r"^\| (sgd|adam) (\S+) \| ([^\n]+) \|$", section, re.MULTILINE)
    assert len(rows) == 15
    for optimizer, rate, said in rows:
        own = [r for r in results if r["changed"] == {"optimizer": optimizer, "rate": float(rate)}]
        assert len(own) == 10
        assert said.split(" | ") == [cell.split(" ± ")[0] for cell in by_noise(own, "accuracy")]
    best = max(rows, key=lambda row: float(row[2].split(" | ")[-1]))
    assert (RivalSettings().optimizer, ONLINE_RATES["mlp"]) == (best[0], float(best[1]))  # the default is the best
    others = read_results([ROOT / "results" / "mnist-crs-sgd.jsonl"])
    rows = re.findall(r"^\| CRS(?: \+ (\w+))? \| ([^\n]+) \|$", section, re.MULTILINE)
    said = {name.lower() or "none": cells.split(" | ") for name, cells in rows if "±" in cells}
    assert len(said) == 4
    for robust, cells in said.items():
        assert cells == by_noise([r for r in others if r["robust"] == robust], "accuracy")


def test_the_schedule_across_buffers_makes_the_difference_that_is_said():
    text = " ".join((ROOT / "REPRODUCTION.md").read_text().split())
    for name, word in (("continuing", "continuing"), ("restart", "restarted")):
        files = sorted((ROOT / "results" / "cifar10-symmetric-0.4-budget-0.02").glob(f"{name}-*.json"))
        values = 100 * np.array([json.loads(path.read_text())["accuracy"] for path in files])
        assert len(values) == 3 and f"{values.mean():.1f} ± {values.std(ddof=1):.1f} % {word}" in text


def test_what_was_tried_on_rivals_is_that_of_the_result_files():
    [section] = [section for section in sections() if section.startswith("Why some rivals")]
    results = linked_results(section)
    plain = [r for r in read_results([ROOT / "results" / "mnist-crs-rates.jsonl"]) if r["noise_rate"] == 0.4]
    plain = [r | {"changed": {}} for r in plain if r["noise"] == "symmetric" and r["changed"].get("rate") == 2e-5]
    who, what = r"(\w+)(?: \+ (\w+))?", r"(?:, `(\w+)=(\S+)`)?"
    rows = re.findall(rf"^\| (?:(\w+) (\d+) %: )?{who}{what} \| ([\d.]+) \|$", section, re.MULTILINE)
    assert len(rows) == 18
    for noise, percent, learner, robust, option, value, said in rows:
        wanted = {"learner": learner.lower(), "robust": robust.lower() or "none", "noise": noise or "symmetric"}
        wanted["noise_rate"] = int(percent or 40) / 100
        wanted["changed"] = {option: float(value)} if option else {}
        own = [r for r in results + plain if all(r[name] == v for name, v in wanted.items())]
        assert [r["seed"] for r in own] == [11, 12] and {r["judged_on"] for r in own} == {"validation"}, wanted
        assert said == f"{100 * np.mean([r['accuracy'] for r in own]):.1f}", wanted


def test_the_full_scale_of_cifar10_is_that_of_its_result_file():
    [section] = [section for section in sections() if "at full scale and with one tenth" in section.splitlines()[0]]
    result = json.loads((ROOT / "results" / "cifar10-symmetric-0.4-full" / "seed-1.json").read_text())
    assert (result["budget"], result["changed"], result["judged_on"]) == (1.0, {}, "test")
    rows = re.findall(r"^\| ([^|,]+?) \| [\d.]+ ± [\d.]+ \| ([\d.]+) \|", section, re.MULTILINE)
    assert [name for name, _ in rows] == list(MEASURES)
    assert [said for _, said in rows] == [f"{100 * result[key]:.1f}" for key in MEASURES.values()]


def test_rivals_on_cifar10_are_those_of_the_result_files():
    [section] = [section for section in sections() if section.startswith("SPR and rivals")]
    results = linked_results(section)
    results += read_results(sorted((ROOT / "results" / "cifar10-symmetric-0.4-budget-0.1").glob("*.json")))
    rows = re.findall(r"^\| (\w+)[^|]* \| ([\d.]+ ± [\d.]+) \|", section, re.MULTILINE)
    assert [name for name, _ in rows] == ["Finetune", "CRS", "GDumb", "SPR"]
    for name, said in rows:
        own = [r for r in results if r["learner"] == name.lower()]
        values = 100 * np.array([r["accuracy"] for r in own])
        assert len(own) == 3 and said == f"{values.mean():.1f} ± {values.std(ddof=1):.1f}", name
        assert all(r["dataset"] == "cifar10" and r["noise_rate"] == 0.4 for r in own)
    tried = read_results([ROOT / "results" / "cifar10-crs-rates.jsonl"])
    found = {}
    for rate in (2e-5, 1e-4, 5e-4, 2e-3):  # the first was the default then
        own = [r["accuracy"] for r in tried if r["changed"].get("rate", 2e-5) == rate]
        assert len(own) == 2
        found[rate] = 100 * np.mean(own)
    assert max(found, key=found.get) == ONLINE_RATES["resnet18"]
    said = re.search(r"([\d.]+) at 0.00002, ([\d.]+) at 0.0001,\s([\d.]+) at 0.0005 and ([\d.]+) at 0.002", section)
    assert list(said.groups()) == [f"{v:.1f}" for v in found.values()]


def test_the_small_stems_variant_is_that_of_the_result_files():
    text = (ROOT / "REPRODUCTION.md").read_text()
    results = read_results([ROOT / "results" / "cifar10-small-stem-variant.jsonl"])
    for learner, words in (("spr", "with\n  the small stem"), ("self-centered-filter", "without Self-Replay")):
        values = 100 * np.array([r["accuracy"] for r in results if r["learner"] == learner])
        assert len(values) == 3 and f"{values.mean():.1f} ± {values.std(ddof=1):.1f} % {words}" in text


def test_patches_give_what_is_said():
    [section] = [section for section in sections() if section.startswith("Without experts")]
    linked = linked_results(section)
    results = [r for r in linked if r["dataset"] != "mnist"]  # which has a table of its own
    who = r"([\w -]+) on ([\w-]+), (experts|patches)(?:, budget ([\d.]+))?(, 3×3 stem)?(, restarts)?"
    rows = re.findall(rf"^\| {who} \| ([\d.]+ ± [\d.]+) \| ([\d.]+ ± [\d.]+) \|$", section, re.MULTILINE)
    assert len(rows) == len(results) / 3 >= 6
    for learner, dataset, features, budget, small, restarts, *said in rows:
        changed = {"features": "patches"} if features == "patches" else {}
        changed |= {"stem": "small"} if small else {}
        changed |= {"base_schedule": "restart", "replay": "halves-distinct"} if restarts else {}
        wanted = {
            "learner": learner.lower().replace(" ", "-"),
            "dataset": dataset.lower().replace("-", ""),
            "changed": changed,
            "budget": float(budget or 1),
        }
        own = [r for r in results if all(r[name] == value for name, value in wanted.items())]
        assert [r["seed"] for r in own] == [1, 2, 3] and {r["noise_rate"] for r in own} == {0.4}, wanted
        for measure, cell in zip(("accuracy", "filtered_noise"), said, strict=True):
            values = 100 * np.array([r[measure] for r in own])
            assert cell == f"{values.mean():.1f} ± {values.std(ddof=1):.1f}", wanted
    ours = [r for r in linked if r["dataset"] == "mnist"]
    place = "{noise}-{noise_rate}-seed-{seed}.json"
    experts = read_results([ROOT / "results" / "mnist-full" / place.format(**r) for r in ours])
    columns = re.findall(r"^\| ([^|]+), (experts|patches) \| ((?:[^|\n]+\|){6})$", section, re.MULTILINE)
    assert len(ours) == 15 and len(columns) == 4
    for name, features, said in columns:
        cells = [cell.strip() for cell in said.split("|")[:-1]]
        assert cells == by_noise(ours if features == "patches" else experts, MEASURES[name]), (name, features)
    values = [100 * np.array([r["accuracy"] for r in some]) for some in (experts, ours)]
    better, p = values[0].mean() - values[1].mean(), stats.ttest_rel(*values).pvalue
    assert f"experts are better, by {better:.1f} points" in section and "p < 0.0001)" in section and p < 1e-4
    small = " ".join(next(s for s in sections() if "one fiftieth" in s.splitlines()[0]).split())
    found = next(row[-2] for row in rows if row[3] == "0.02" and row[4] and not row[5])
    assert f"features of patches in their place (next section) it is {found} %" in small
    for said in (
        "38.5 ± 1.5",
        "35.2 ± 0.9",
        "36.4 ± 1.8",
    ):  # held to their files where they are first said
        assert (ROOT / "REPRODUCTION.md").read_text().count(said) >= 2


def test_experts_and_patches_together_give_what_is_said():
    [section] = [section for section in sections() if section.startswith("Experts and patches together")]
    small = read_results(sorted((ROOT / "results" / "cifar10-symmetric-0.4-budget-0.02-small-stem").glob("*.json")))
    results = [r | {"changed": {"stem": "small"}} for r in small]  # older than this key
    patches = read_results([ROOT / "results" / "cifar10-patches.jsonl"])
    results += [r for r in patches if r["changed"] == {"stem": "small", "features": "patches"}]
    results += linked_results(section)
    who = r"([\w-]+), symmetric (\d+)(?:, budget ([\d.]+))?(, 3×3 stem)?, (experts|patches|combined)"
    rows = re.findall(rf"^\| {who} \| ((?:[\d. ±]+\|){{4}})$", section, re.MULTILINE)
    assert len(rows) == len(results) / 3 == 8
    for dataset, rate, budget, stem, features, said in rows:
        wanted = {
            "dataset": dataset.lower().replace("-", ""),
            "noise_rate": int(rate) / 100,
            "budget": float(budget or 1),
            "changed": ({"stem": "small"} if stem else {}) | ({} if features == "experts" else {"features": features}),
        }
        own = [r for r in results if all(r[name] == value for name, value in wanted.items())]
        assert [r["seed"] for r in own] == [1, 2, 3], wanted
        for measure, cell in zip(
            ("accuracy", "filtered_noise", "purity", "passed_noise"), said.split("|"), strict=False
        ):
            values = 100 * np.array([r[measure] for r in own])
            assert cell.strip() == f"{values.mean():.1f} ± {values.std(ddof=1):.1f}", (wanted, measure)
    columns = {(r["seed"], bool(r["changed"])): r["accuracy"] for r in results if r["dataset"] == "mnist"}
    assert all(columns[seed, True] > columns[seed, False] for seed in (1, 2, 3))  # "with every seed"
    [together] = [said for dataset, *_, features, said in rows if (dataset, features) == ("CIFAR-10", "combined")]
    text = " ".join((ROOT / "REPRODUCTION.md").read_text().split())
    assert f"experts and patches together (the section after it) {together.split(' |')[0].strip()} %" in text


def test_narrow_networks_cost_the_demo_what_is_said():
    text = (ROOT / "docs" / "performance.md").read_text()
    results = read_results([ROOT / "results" / "digits-width.jsonl"])
    row = r"^\| 64-(128|256)-\1 \| (\d+), (\d+) \| (\w+) \| (\d+) \| ([^|]+) \| ([^|]+) \| ([\d.]+) \|$"
    rows = re.findall(row, text, re.MULTILINE)
    assert len(rows) == 7 and sum(int(row[4]) for row in rows) == len(results)
    demo = {name: PRESETS["demo"][name] for name in ("hidden", "expert_epochs", "base_epochs")}
    tested = {}
    for *chosen, judged_on, n, accuracy, filtered, seconds in rows:
        wanted = dict(zip(demo, map(int, chosen), strict=True))
        own = [r for r in results if r["judged_on"] == judged_on and demo | r["changed"] == wanted]
        assert [r["seed"] for r in own] == list(range(1, int(n) + 1))
        values = {name: 100 * np.array([r[name] for r in own]) for name in ("accuracy", "filtered_noise")}
        assert [accuracy, filtered] == [f"{v.mean():.1f} ± {v.std(ddof=1):.1f}" for v in values.values()]
        assert seconds == f"{np.mean([r['seconds']['total'] for r in own]):.1f}"
        tested[tuple(wanted.values()), judged_on] = values
    before, after = tested[(256, 300, 100), "test"], tested[tuple(demo.values()), "test"]
    p = [stats.ttest_rel(after[name], before[name]).pvalue for name in values]
    assert f"p = {p[0]:.2f} for the accuracy and p = {p[1]:.2f} for the filtered noise" in text


def test_tf32_costs_the_rivals_what_is_said():
    text = (ROOT / "docs" / "performance.md").read_text()
    accuracy = {}
    for name in ("mnist-rivals-float32", "mnist-rivals"):
        for r in read_results([ROOT / "results" / f"{name}.jsonl"]):
            key = r["learner"], r["robust"], r["noise"], r["noise_rate"], r["seed"]
            accuracy.setdefault(key, []).append(100 * r["accuracy"])
    for learner, robust, row in (
        ("gdumb", "none", "GDumb"),
        ("crs", "none", "CRS"),
        ("crs", "sl", "CRS + SL"),
        ("crs", "pencil", "CRS + Pencil"),
    ):
        pairs = np.array([pair for key, pair in accuracy.items() if key[:2] == (learner, robust)])
        before, after = pairs.T
        assert len(pairs) == 15
        p = stats.ttest_rel(before, after).pvalue
        assert f"| {row} | {before.mean():.1f} | {after.mean():.1f} | {p:.2f} |" in text


def by_noise(results: list[dict], measure: str) -> list[str]:
    """The cells of a table with a column for each noise of the paper, and their mean."""
    cells, means = [], []
    for noise, rate in (
        ("symmetric", 0.2),
        ("symmetric", 0.4),
        ("symmetric", 0.6),
        ("asymmetric", 0.2),
        ("asymmetric", 0.4),
    ):
        values = 100 * np.array([r[measure] for r in results if (r["noise"], r["noise_rate"]) == (noise, rate)])
        cells.append(f"{values.mean():.1f}" + (f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""))
        means.append(values.mean())
    return [*cells, f"{np.mean(means):.1f}"]


def test_the_cost_of_precision_is_that_of_the_result_files():
    text = (ROOT / "docs" / "performance.md").read_text()
    folder = ROOT / "results" / "mnist-fast-and-plain"
    found = {}
    for precision in ("bf16", "float32"):
        files = [json.loads((folder / f"{precision}-seed-{seed}.json").read_text()) for seed in range(1, 9)]
        assert all(r["precision"] == precision for r in files)
        found[precision] = 100 * np.array([r["accuracy"] for r in files])
        row = f"| {precision} | {found[precision].mean():.1f} ± {found[precision].std(ddof=1):.1f} | "
        assert row + ", ".join(f"{v:.1f}" for v in found[precision]) + " |" in text
    assert f"p = {stats.ttest_rel(found['bf16'], found['float32']).pvalue:.2f}" in text
