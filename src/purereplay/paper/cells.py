"""The runs behind every cell of the paper's tables: from a table, a row and a column to the settings of a run.

Each kind of table is a small declaration: the settings that a row means (`_ROWS`), and what the table changes for all
of its rows (`_SIZES`, `_EPISODES`). A cell may have several runs that give its number; the first one is computed if no
result has any of them.

The row "ImageNet pretrained" takes the features of an encoder that the user names. Without one, results count whose
features come from a file that names its encoder. All numbers of the row come from one encoder, which the row states.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from purereplay.data import datasets
from purereplay.data.catalogue import info_for
from purereplay.data.encoders import EncoderFacts
from purereplay.evaluate.compare import Cell
from purereplay.evaluate.identity import RunKey, result_key, run_key
from purereplay.evaluate.records import Result
from purereplay.evaluate.settings import RunSettings, resolve
from purereplay.learners import registry
from purereplay.learners.robust.settings import ROBUST_TITLES
from purereplay.paper.numbers import WEBVISION_COLUMNS, Column, PaperTable

_EPISODES = {"episode_b": "B", "episode_c": "C"}
_FILTER_LEARNERS = ("self-centered-filter", "spr")  # the samples that pass a filter do not depend on the base
_REPLAY = ("crs", "prs", "mir")  # PENCIL does not change their results, bit for bit on the CPU
PRETRAINED = "ImageNet pretrained"  # the row of the user's own features
_ROWS: dict[str, dict[str, str]] = {  # rows of some tables: settings of spr or of the Self-Centered filter
    "AUM": {"filter": "aum"},
    "INCV": {"filter": "incv"},
    "Non-stochastic": {"graphs": "0"},
    "SR with DB": {},
    "SR without DB": {"replay": "purified"},
}

# by learner and dataset, chosen on validation data; see docs/experiments/mnist-baselines.md
_CHOSEN: dict[tuple[str, str], dict[str, str]] = {("multitask", "mnist"): {"lr": "0.002"}}


class Choice(NamedTuple):
    """Choices of the user about the runs behind the tables."""

    budget: float = 1.0  # of learners with self-supervised epochs
    device: str = "cpu"
    precision: str = "auto"
    features_file: str | None = None  # features of a network trained on ImageNet, for one of the tables
    features_digest: str | None = None  # of their values
    encoder: EncoderFacts | None = None  # whose features they are; the file may still have to be made
    evaluate: str = "tasks"  # of the tables' runs; figures need an evaluation after each task


class PaperCell(NamedTuple):
    """A number of the paper and the runs that give ours."""

    table: str
    dataset: str
    method: str
    column: Column
    value: float  # the paper's, %
    measure: str  # as in a run's result
    class_number: int | None  # of one class: the measure is its accuracy
    runs: tuple[RunSettings, ...]  # of seed 1; each gives the number
    why_not: str  # why it cannot be measured here; "" if it can

    @property
    def keys(self) -> list[str]:
        """Return the keys of its runs, without the seed; those with features of the user without their digest."""
        return [run_key(run).cell for run in self.runs]

    def measured(self, result: Result) -> float | None:
        """Return our number, %, from the result of one of its runs."""
        if self.class_number is not None:
            by_class = result.get("class_accuracies") or []
            value = by_class[self.class_number] if self.class_number < len(by_class) else None
        else:
            value = result.get(self.measure)
        return None if value is None else 100 * float(value)


def table_cells(table: PaperTable, choice: Choice | None = None) -> list[PaperCell]:
    """Return every cell of a table of the paper."""
    choice = choice or Choice()
    cells = []
    for (method, column), value in table.values.items():
        names = info_for(table.dataset).class_names
        number = names.index(WEBVISION_COLUMNS[column.name]) if column.name in WEBVISION_COLUMNS else None
        why_not = _why_not(table, method, choice)
        runs = _runs(table, method, column, choice)
        cells.append(PaperCell(table.name, table.dataset, method, column, value, table.measure, number, runs, why_not))
    return cells


def our_cells(
    cells: Iterable[PaperCell],
    finished: dict[RunKey, Result],
    choice: Choice | None = None,
    seeds: Iterable[int] | None = None,
) -> dict[tuple[str, Column], Cell]:
    """Return our numbers over seeds, by row and column of a table; `seeds` None: of all seeds."""
    wanted = None if seeds is None else set(seeds)
    ours = {}
    for cell, by_seed in our_results(cells, finished, choice):
        values = [cell.measured(by_seed[s]) for s in sorted(by_seed) if wanted is None or s in wanted]
        if values:
            ours[cell.method, cell.column] = Cell([value for value in values if value is not None])
    return ours


def our_results(
    cells: Iterable[PaperCell], finished: dict[RunKey, Result], choice: Choice | None = None
) -> list[tuple[PaperCell, dict[int, Result]]]:
    """Return the results that measured each cell, by seed."""
    cells, choice = list(cells), choice or Choice()
    pretrained = any(cell.method == PRETRAINED for cell in cells)
    with_features = _of_one_encoder(cells, finished, choice) if pretrained else {}
    by_cell: dict[bool, dict[str, dict[int, Result]]] = {False: {}, True: {}}  # True: with the user's features
    for own, found in ((False, finished), (True, with_features)):
        for key, result in found.items():
            by_cell[own].setdefault(key.cell, {})[key.seed] = result
    filled = []
    for cell in cells:
        by_seed: dict[int, Result] = {}
        for key_of_cell in cell.keys:
            for seed, result in by_cell[cell.method == PRETRAINED].get(key_of_cell, {}).items():
                if cell.measured(result) is not None:
                    by_seed.setdefault(seed, result)
        filled.append((cell, by_seed))
    return filled


def encoder_name(
    cells: Iterable[PaperCell], finished: dict[RunKey, Result], choice: Choice | None = None
) -> str | None:
    """Return the name of the encoder behind the row of the user's features, or None if that row is not measured."""
    own = [cell for cell in cells if cell.method == PRETRAINED]
    for _, by_seed in our_results(own, finished, choice):
        for result in by_seed.values():
            file = "" if choice is None or choice.features_file is None else Path(choice.features_file).name
            return (result.get("features_encoder") or {}).get("name") or file
    return None


def _of_one_encoder(cells: Iterable[PaperCell], finished: dict[RunKey, Result], choice: Choice) -> dict[RunKey, Result]:
    """Return the results of runs with features of the user, by keys without these features' digest.

    They are those of the user's encoder or file; if there is neither, of the encoder with the most of them.
    """
    keys = {key for cell in cells if cell.method == PRETRAINED for key in cell.keys}
    by_encoder: dict[str, dict[RunKey, Result]] = {}
    for result in finished.values():
        if (digest := result.get("features_digest")) is None:
            continue
        key, encoder = result_key(result | {"features_digest": None}), result.get("features_encoder") or {}
        if choice.encoder is not None:
            fits = encoder.get("digest") == choice.encoder.digest
        elif choice.features_digest is not None:
            fits = digest == choice.features_digest
        else:
            fits = bool(encoder.get("name"))
        if key is not None and key.cell in keys and fits:
            by_encoder.setdefault(encoder.get("digest") or digest, {})[key] = result
    most = max(by_encoder, key=lambda name: (len(by_encoder[name]), name), default=None)
    return {} if most is None else by_encoder[most]


def _runs(table: PaperTable, method: str, column: Column, choice: Choice) -> tuple[RunSettings, ...]:
    """Return the runs of a row and a column, with seed 1."""
    episode = _EPISODES.get(table.name, "A")
    if table.name.startswith("filtering") or table.name == "cifar100_filtering":
        own = dict(_ROWS.get(method, {}))
        if table.name == "filtering_e20" and method == "SPR":
            own["graphs"] = "20"
        if method == PRETRAINED:
            features, short = choice.features_file or "", own | {"finetune_epochs": "1"}
            # what is filtered does not depend on the classifier, so the run that is computed trains it shortly
            kinds = [(_FILTER_LEARNERS[0], short), *((name, own) for name in _FILTER_LEARNERS)]
            return tuple(_resolved(table, column, episode, *kind, choice, features) for kind in kinds)
        return tuple(_resolved(table, column, episode, name, own, choice, None) for name in _FILTER_LEARNERS)
    name, _, robust = method.removesuffix(" (clean)").partition(" + ")
    learner = "spr" if name in _ROWS else _learner(name)
    own = dict(_ROWS.get(name, {}))
    if robust:
        own["robust"] = next(key for key, title in ROBUST_TITLES.items() if title == robust)
    own |= _sizes(table, learner) | _CHOSEN.get((learner, table.dataset), {})
    episodes = ("A", episode) if learner == "multitask" else (episode,)  # it does not depend on the order of tasks
    runs = [_resolved(table, column, e, learner, own, choice, None) for e in dict.fromkeys(episodes)]
    if learner in _REPLAY and robust in ("", ROBUST_TITLES["pencil"]):  # its first stage does not end: plain replay
        same = own | {"robust": "none" if robust else "pencil"}
        runs.append(_resolved(table, column, episode, learner, same, choice, None))
    return tuple(runs)


def _resolved(
    table: PaperTable,
    column: Column,
    episode: str,
    learner: str,
    own: dict[str, str],
    choice: Choice,
    features_file: str | None,
) -> RunSettings:
    return resolve(
        dataset=table.dataset,
        noise=column.noise,
        noise_rate=column.rate,
        episode=episode,
        learner=learner,
        budget=choice.budget,
        device=choice.device,
        precision=choice.precision,
        features_file=features_file,
        evaluate=choice.evaluate,
        overrides=own,
    )


def _sizes(table: PaperTable, learner: str) -> dict[str, str]:
    """Return the sizes of the buffers that a table asks for, where they are not the dataset's."""
    usual = info_for(table.dataset).buffer_size
    size = {"half_buffer": usual // 2, "double_buffer": 2 * usual, "noise_free": 500}.get(table.name)
    if size is None or (table.name == "double_buffer" and learner == "spr"):
        return {}
    names = ("memory_size",) if learner == "gdumb" else ("delayed_size", "purified_size")
    return dict.fromkeys(names, str(size))


def _learner(title: str) -> str:
    """Return the learner with a title."""
    return next(name for name in registry.names() if registry.entry(name).title == title)


def _why_not(table: PaperTable, method: str, choice: Choice) -> str:
    if method == PRETRAINED and choice.features_file is None and choice.encoder is None:
        return "needs --encoder or --features-file: a network trained on ImageNet, or its features"
    return why_not_dataset(table.dataset)


@cache
def why_not_dataset(name: str) -> str:
    """Return why the runs of a dataset are not possible here, or ""."""
    if name == "webvision14" and datasets.found_at(name) is None:
        return "WebVision must be downloaded by hand"
    return ""


def digest_for(run: RunSettings, choice: Choice) -> str | None:
    """Return the digest of the user's features if a run uses them."""
    return choice.features_digest if run.features_file is not None else None
