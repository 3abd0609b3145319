"""The documents say what is there: links lead somewhere, commands exist, tables are those of the result files."""

import importlib.util
import json
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from sklearn.datasets import load_digits
from typer.main import get_command

from purereplay.cli import app
from purereplay.evaluate.store import Store
from purereplay.learners import registry
from purereplay.learners.baselines.online import LR_BY_NETWORK, OnlineSettings
from purereplay.learners.spr.settings import PRESETS
from purereplay.paper.cells import our_cells, table_cells
from purereplay.paper.numbers import paper_table

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted((ROOT / "docs" / "experiments").glob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MEASURED = [ROOT / "REPRODUCTION.md", ROOT / "docs" / "performance.md", *EXPERIMENTS]


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere_and_named_things_are_there(document):
    for code, name, target, anchor in re.findall(r"\[(`?)([^\]`]+)`?\]\(([^)#]*)#?([^)]*)\)", document.read_text()):
        if target.startswith("http"):
            continue
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), f"{document.name} links to {target}"
        if code:  # a named function or class: `SPR.work`
            last = name.rpartition(".")[2]
            assert re.search(rf"(def|class) {last}\b", path.read_text()), f"{name} is not in {target}"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{document.name} links to {target}#{anchor}"


def anchors(text: str) -> list[str]:
    """The anchors that GitHub gives to the headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_every_experiment_is_in_the_index():
    pages = {page.name for page in EXPERIMENTS} - {"index.md"}
    listed = re.findall(r"^\| \[(\S+)\]", (ROOT / "docs" / "experiments" / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(pages)


def pages_of(nav) -> list[str]:
    """The pages below an entry of mkdocs.yml's nav."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(part)]


def test_the_site_shows_every_page_once_and_loads_nothing_from_elsewhere():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    in_docs = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    of_root = set(re.findall(r'"(\w+\.md)"', (ROOT / "docs" / "site_hooks.py").read_text()))
    assert sorted(pages_of(site["nav"])) == sorted(in_docs | of_root)
    assert site["theme"]["font"] is False and "http" not in (ROOT / "mkdocs.yml").read_text()


def test_the_picture_names_rooms_that_exist():
    rooms = re.findall(r'^    "(\w+/)": \(', (ROOT / "docs" / "architecture.py").read_text(), re.MULTILINE)
    assert len(rooms) == 5 and all((ROOT / "src" / "purereplay" / room).is_dir() for room in rooms)


def test_file_map_names_what_exists():
    tree = (ROOT / "README.md").read_text().split("```\nsrc/purereplay/\n")[1].split("```")[0]
    for line in tree.splitlines():
        name = line.split()[0]
        parent = ROOT / "src" / "purereplay" if line.startswith("  ") else ROOT
        assert (parent / name).exists(), name


def python_of(name: str) -> list[str]:
    """The Python blocks of a document."""
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.long
def test_the_readmes_python_runs():
    [block] = python_of("README.md")
    assert len([line for line in block.splitlines() if line]) <= 10
    names: dict = {}
    exec(block, names)
    assert names["predicted"].shape == (197,) and 0 <= names["noise"] <= 1
    assert len(names["suspects"]) == 1600


def test_the_python_of_the_first_steps_runs():
    learner, alone = python_of("docs/getting-started.md")
    digits = load_digits()
    images = torch.from_numpy(np.round(digits.images * 255 / 16).astype(np.uint8))[:, None]
    labels, index = torch.from_numpy(digits.target).long(), torch.arange(len(images))
    batches = [tuple(t[i : i + 40] for t in (images, labels, index)) for i in (0, 40, 80)]
    quick = learner.replace('preset="demo"', 'preset="demo", expert_epochs=20, base_epochs=5')
    names = {"batches": batches, "new_images": images[200:210]}
    exec(quick, names)
    assert names["predicted"].shape == (10,) and "suspects" in names
    names = {"features": digits.data[:200], "labels": digits.target[:200]}
    exec(alone, names)
    assert names["p"].shape == (200,) and 0 <= names["p"].min() <= names["p"].max() <= 1


def test_the_readme_has_its_parts_in_order():
    headings = re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert headings == [
        "Results",
        "Install",
        "Two commands",
        "Your own images in five commands",
        "Python in ten lines",
        "Where things are",
    ]


def test_the_filters_python_runs():
    alone, compared, images, together = python_of("docs/filter.md")
    digits = load_digits()
    names = {"features": digits.data[:200], "labels": digits.target[:200]}
    exec(alone, names)
    assert names["suspects"].shape == (100,) and names["mask"].shape == (200,) and names["mask"].dtype == bool
    names = {"features": digits.data[:300], "labels": digits.target[:300]}
    exec(compared, names)
    assert names["suspects"].shape == (100,) and names["share"].low <= names["share"].rate <= names["share"].high
    assert names["model"].predict_proba(names["own"]).shape == (300, 10)
    names = {"images": (digits.images[:200, None] * 15.9).astype(np.uint8), "labels": digits.target[:200]}
    exec(images, names)
    assert names["scored"].clean_probability_.shape == (200,)
    names["of_a_network"] = digits.data[:200].astype(np.float32)
    exec(together, names)
    assert names["features"].shape == (200, 64) and names["features"].dtype == np.float32


COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def settings_of(words: list[str]) -> set[str]:
    """The settings that the learners of a command share, and each learner's with its name before them."""
    named = words[words.index("--learner") + 1].split(",") if "--learner" in words else ["spr"]
    known = [registry.entry(name) for name in (named if "$" not in "".join(named) else registry.names())]
    common = set.intersection(*({f.name for f in fields(entry.settings)} for entry in known))
    return common | {f"{entry.name}.{f.name}" for entry in known for f in fields(entry.settings)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_options_and_settings_exist(document):
    for words in commands(document.read_text()):
        assert words[0] in COMMANDS, words
        known = {option for parameter in COMMANDS[words[0]].params for option in parameter.opts}
        for word, value in zip(words, [*words[1:], ""], strict=True):
            if re.match(r"--?[a-z]", word):
                assert word.split("=")[0] in known, words
            if word == "--set":
                assert value.split("=")[0] in settings_of(words), words


def commands(text: str) -> list[list[str]]:
    """The words behind `purereplay` of each command in the shell blocks."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            _, here, rest = line.partition("purereplay ")
            words = shlex.split(re.split(r" [;>|]|; ", rest)[0], comments=True)
            found += [words] if here and words else []
    return found


def test_the_readme_has_five_commands_for_own_images():
    names = [words[0] for words in commands((ROOT / "README.md").read_text())]
    assert names == ["learn", "status", "audit", "correct", "predict"]


def script(name: str):
    """A module of docs/, by its name."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.fixture(scope="module")
def tables():
    return script("tables")


@pytest.fixture(scope="module")
def reference_pages():
    return script("reference_pages")


def test_reference_pages_are_those_of_the_code(reference_pages):
    for page, text in reference_pages.PAGES.items():
        assert page.read_text() == text(), "run `make tables`"


def test_the_page_of_settings_names_every_setting_of_every_learner(reference_pages):
    text = (ROOT / "docs" / "settings.md").read_text()
    for entry in registry.entries():
        section = text.split(f"\n## {entry.name}\n")[1].split("\n## ")[0]
        shown = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        assert shown == [f.name for f in fields(entry.settings)] or "(#spr)" in section


def test_a_setting_shows_its_values_source_and_presets(reference_pages):
    rows = {row[0]: row for row in reference_pages.settings_rows(registry.entry("spr"))}
    assert rows["`tail`"][1:] == [
        "`process`",
        "",
        "treatment of a partly filled D at the end of the stream<br>Values: process, drop",
        "released code: drop",
        "reference drop",
    ]
    assert rows["`expert_batch`"][1:3] == ["by data", "samples"] and "By data: all of D" in rows["`expert_batch`"][3]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_tables_are_those_of_the_result_files(document, tables):
    text = document.read_text()
    assert tables.filled(text) == text, "run `make tables`"


def test_every_declared_table_is_shown(tables):
    shown = re.findall(r"<!-- table: (\S+) -->", "".join(document.read_text() for document in DOCUMENTS))
    assert sorted(set(shown)) == sorted(tables.TABLES)


@pytest.mark.parametrize("document", MEASURED, ids=name_of)
def test_no_mean_is_written_by_hand(document):
    by_hand = re.sub(r"<!-- table: .*?<!-- end -->", "", document.read_text(), flags=re.DOTALL)
    assert not re.findall(r".*\d ± \d.*", by_hand)


def test_reproduction_stays_short():
    assert len((ROOT / "REPRODUCTION.md").read_text().splitlines()) <= 150


def test_tables_beside_the_paper_are_those_that_reproduce_prints(tables, tmp_path):
    kept = Store(tmp_path / "store", [ROOT / "results"])
    shown = [table for table in tables.TABLES.values() if isinstance(table, tables.BesidePaper)]
    assert shown
    for table in shown:
        there = our_cells(table_cells(paper_table(table.name, table.dataset)), kept.finished)
        assert {key: cell.values for key, cell in table.cells().items()} == {k: c.values for k, c in there.items()}


def test_a_changed_number_an_unknown_table_and_a_missing_end_are_noticed(tables):
    page = tables.filled("<!-- table: spr-precision -->\n<!-- end -->\n")
    assert "| bf16 | 73.5 ± 1.8 |" in page
    assert tables.filled(page.replace("73.5", "74.5")) == page
    with pytest.raises(KeyError, match="not declared"):
        tables.filled("<!-- table: nothing -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match="needs its"):
        tables.filled("<!-- table: spr-precision -->\n")


def test_rows_refuse_results_that_do_not_belong_together(tables):
    mixed = tables.Runs(files="mnist-fast-and-plain/*.json")  # each seed in two precisions
    with pytest.raises(ValueError, match="Two results"):
        tables.mean()(mixed)
    with pytest.raises(ValueError, match="No result"):
        tables.Runs(files="mnist-patches.jsonl", where={"learner": "gdumb"}).results()
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        tables.Runs(files="no-such-file.jsonl").results()


def test_cells_are_means_and_deviations_by_another_way(tables):
    lines = (ROOT / "results" / "mnist-crs-sgd.jsonl").read_text().splitlines()
    own = [r for r in map(json.loads, lines) if (r["robust"], r["noise"], r["noise_rate"]) == ("sl", "symmetric", 0.4)]
    values = 100 * np.array([r["accuracy"] for r in own])
    table = tables.TABLES["mnist-crs-sgd"].lines()
    [cell] = [line[table[0].index("symmetric 40")] for line in table if line[0] == "CRS + SL"]
    assert len(own) == 3 and cell == f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"


def test_default_learning_rates_are_the_best_on_validation_data(tables):
    for network, name in (("mlp", "mnist-crs-lr"), ("resnet18", "cifar10-crs-lr")):
        rows = tables.TABLES[name].rows.values()
        assert {r["judged_on"] for row in rows for r in row.results()} == {"validation"}
        best = max(rows, key=lambda row: np.mean([r["accuracy"] for r in row.results()])).where["changed"]
        assert best["lr"] == LR_BY_NETWORK[network]
        assert best.get("optimizer", "adam") == OnlineSettings.__dataclass_fields__["optimizer"].default


def test_the_demos_row_is_its_preset(tables):
    width, expert, base = (PRESETS["demo"][name] for name in ("hidden", "expert_epochs", "base_epochs"))
    assert f"64-{width}-{width}; {expert}, {base} (the preset); test" in tables.TABLES["demo-width"].rows


def test_the_page_about_your_data_shows_the_kept_results():
    spec = importlib.util.spec_from_file_location("your_data_page", ROOT / "docs" / "your_data_page.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = page.PAGE.read_text()
    assert text.count("<!-- part: ") == 7 and "| digits | symmetric 30 % | " in text
    assert page.written(text, page.read()) == text, "run docs/your_data_page.py"
