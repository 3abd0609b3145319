"""The report of a state: noise by label, the purified buffer, centralities, galleries, settings and versions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.data.files import write_whole
from purereplay.data.seeds import derive_seed
from purereplay.evaluate.experiment import versions
from purereplay.live.buffers import load_learner
from purereplay.live.encoding import inputs
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.predict import with_current
from purereplay.live.settings import StateSettings
from purereplay.live.status import Status, status
from purereplay.live.store import Current, Store
from purereplay.live.verdicts import ALL, Estimate, last_revision, read_noise, unjudged
from purereplay.nets.engine import Engine
from purereplay.nets.inference import embed
from purereplay.purify.noise_rate import NoiseRate, noise_rates
from purereplay.purify.options import FilterOptions
from purereplay.purify.patches import patch_features
from purereplay.purify.self_centered import score_samples
from purereplay.report import page, pictures
from purereplay.report.histograms import Scored, histogram_data
from purereplay.report.page import Extent, Progress, Tile
from purereplay.report.terminal import percent, times

_NOISE_SAMPLE = 2000  # scored samples for the noise estimate
_SCORED = (
    "SELECT d.position, s.label, iif(u.position IS NULL, d.probability, NULL), d.centrality, d.selected, d.buffer"
    " FROM decisions d JOIN samples s USING (position) LEFT JOIN ({unjudged}) u USING (position) ORDER BY d.position"
)


class Verdicts(NamedTuple):
    """All verdicts of a state, in the order of the samples."""

    position: NDArray[np.int64]
    label: NDArray[np.int64]
    probability: NDArray[np.float64]  # NaN: the sample could not be judged
    centrality: NDArray[np.float64]
    accepted: NDArray[np.bool_]
    buffer: NDArray[np.int64]


def write_state_report(state: Path, engine: Engine, out: Path, extent: Extent, progress: Progress) -> None:
    """Write the report of a state to one file."""
    with Store.reading(state) as store:
        store.check_destination(out)
        facts = status(store)

        def use(current: Current | None) -> list[str]:
            return _parts(store, current, facts, engine, extent, progress)

        parts = with_current(store, use)
    write_whole(out, page.page(f"State {state.resolve().name}", parts).encode())


def _parts(
    store: Store, current: Current | None, facts: Status, engine: Engine, extent: Extent, progress: Progress
) -> list[str]:
    names = store.labels()
    columns = list(zip(*store.query(_SCORED.format(unjudged=unjudged(store))), strict=True)) or [()] * 6
    kinds = (np.int64, np.int64, np.float64, np.float64, np.bool_, np.int64)
    verdicts = Verdicts(*(np.array(values, kind) for values, kind in zip(columns, kinds, strict=True)))
    if current is None or not len(verdicts.position):
        return [_headline(facts, None), page.paragraph("No sample was judged yet.")]
    progress("estimating the noise", 0, 1)
    overall, by_label = _noise(store, current, engine, verdicts, len(names))
    full = store.settings.learner == FULL_MEMORY
    return [
        _headline(facts, overall),
        page.row(
            _noise_section(names, overall, by_label, full=full), _purified_section(store, names, facts, full=full)
        ),
        _opinions_section(store) if full else _histogram_section(store, verdicts, names, extent.n_fixed, progress),
        *_galleries(store, verdicts, names, facts, extent.n_images, progress),
        _facts_section(store, facts),
    ]


def _headline(facts: Status, noise: NoiseRate | None) -> str:
    full = facts["purified_size"] is None
    how = f"all together {times(facts['revisions'])}" if full else f"in {facts['buffers']:,} buffers"
    size = "all that are not rejected or dropped" if full else f"of {facts['purified_size']:,}"
    place = "believed" if full else "in the purified buffer"
    n_judged = facts["scored"] - facts["unjudged"]
    numbers = [
        (f"{n_judged:,}", "samples judged", f"{how}, {facts['waiting']:,} waiting"),
        (f"{facts['accepted']:,}", "accepted", f"{facts['rejected']:,} rejected"),
        (f"{facts['purified']:,}", place, size),
        (f"{facts['corrected']:,}", "labels by people", f"{facts['corrected_in_purified']:,} {place}"),
    ]
    if facts["unjudged_reason"]:
        numbers.append((f"{facts['unjudged']:,}", "could not be judged", facts["unjudged_reason"]))
    if noise is not None and noise.n:
        rates = f"{percent(noise.low)} to {percent(noise.high)}, of {noise.n:,} samples"
        numbers.insert(0, (percent(noise.rate), "wrong labels, estimated", rates))
    return page.headline(numbers)


def _noise(
    store: Store, current: Current, engine: Engine, verdicts: Verdicts, n_classes: int
) -> tuple[NoiseRate, list[NoiseRate]]:
    if store.settings.learner == FULL_MEMORY:
        found = read_noise(store)
        rates = [_rate(found.get((given, ALL))) for given in (ALL, *range(n_classes))]
        return rates[0], rates[1:]
    learner = load_learner(store, current, engine)
    rows = np.sort(np.random.default_rng(0).permutation(len(verdicts.position))[:_NOISE_SAMPLE])
    images = inputs(store, verdicts.position[rows])
    features = embed(learner.network, learner.inference_base, images, penultimate=True).cpu().numpy()
    return noise_rates(features, verdicts.label[rows], n_classes)


def _rate(found: Estimate | None) -> NoiseRate:
    return NoiseRate(float("nan"), 0.0, 1.0, 0) if found is None else NoiseRate(*found[1:], found.n)


def _noise_section(names: list[str], overall: NoiseRate, by_label: list[NoiseRate], *, full: bool) -> str:
    if not overall.n:
        text = "The share of wrong labels is unknown: no label has enough samples to compare them with each other."
        return page.section("Noise by label", page.paragraph(text))
    how = "by the models below" if full else "from the labels of similar images"
    figure = pictures.rates_figure(names, [(r.rate, r.low, r.high) for r in by_label], "wrong labels, %")
    rows = [
        (n, f"{r.n:,}", *(map(percent, r[:3]) if r.n else ("–",) * 3)) for n, r in zip(names, by_label, strict=True)
    ]
    return page.section(
        "Noise by label",
        page.paragraph(
            f"Estimated share of wrong labels, {how}, "
            f"with its 95 % interval. Over all labels: {percent(overall.rate)}. The true labels are not known."
            + (" Labels that people have checked are left out." if full else "")
        ),
        page.picture(figure, "Estimated share of wrong labels by given label, with 95 % intervals"),
        page.details("As a table", page.table(("label", "samples counted", "rate", "low", "high"), rows, range(1, 5))),
    )


def _purified_section(store: Store, names: list[str], facts: Status, *, full: bool) -> str:
    corrected = dict(store.query("SELECT position, label FROM corrections ORDER BY number"))
    held = store.query("SELECT p.position, s.label FROM purified p JOIN samples s USING (position)")
    codes = [corrected.get(position, label) for position, label in held]
    counts = np.bincount(np.array(codes, np.int64), minlength=len(names)).tolist()
    rows = [[row["label"], *(row[key] for key in ("samples", "scored", "rejected"))] for row in facts["classes"]]
    head = ["label", "samples", "judged", "rejected"]
    if facts["unjudged"]:
        head.append("not judged")
        rows = [[*cells, row["unjudged"]] for cells, row in zip(rows, facts["classes"], strict=True)]
    caption = "Believed samples by label" if full else "Samples in the purified buffer by label"
    return page.section(
        "Believed samples" if full else "Purified buffer",
        page.picture(pictures.balance_figure(names, counts, None), caption),
        page.details("Samples by label", page.table(head, rows, range(1, len(head)))),
    )


def _opinions_section(store: Store) -> str:
    last = last_revision(store)
    rows = [] if last is None else [(name, percent(weight)) for name, weight in last.opinions.items()]
    return page.section(
        "Opinions",
        page.paragraph(
            "Every label is judged by several models that were not fitted on its sample. Their weights in the clean "
            "probability are learned without true labels."
        ),
        page.table(("model", "weight"), rows, range(1, 2)),
    )


def _histogram_section(store: Store, verdicts: Verdicts, names: list[str], n_fixed: int, progress: Progress) -> str:
    numbers = np.unique(verdicts.buffer).tolist()
    settings = store.image_settings
    with_graph = set(numbers[-n_fixed:] if n_fixed and _has_patches(settings) else [])
    buffers = []
    for i, number in enumerate(numbers):
        rows = np.flatnonzero(verdicts.buffer == number)
        labels = verdicts.label[rows]
        fixed = None
        if number in with_graph:
            progress("fixed graphs", i + 1, len(numbers))
            images = inputs(store, verdicts.position[rows])
            seed = derive_seed(settings.seed, "patches", 0 if getattr(settings.options, "reseed", False) else number)
            features = patch_features(images, seed).numpy()  # those that the filter compared
            fixed = score_samples(features, labels, options=FilterOptions(n_graphs=0)).centrality
        buffers.append(Scored(number, labels, verdicts.centrality[rows], verdicts.accepted[rows], fixed))
    graphs = (
        f"The fixed graph is computed from patches of the images, for the last {len(with_graph)} buffers."
        if with_graph
        else "This state has no features from which a fixed graph could be computed again."
    )
    return page.section(
        "Centrality",
        page.paragraph(
            "Centrality of the samples of one label in one buffer, and the two components of the beta mixture fitted "
            f"to it: noisy (orange, dashed) and clean (blue). {graphs}"
        ),
        page.histograms(histogram_data(buffers, names)),
    )


def _has_patches(settings: StateSettings) -> bool:
    return getattr(settings.options, "features", None) in ("patches", "combined")


def _galleries(
    store: Store, verdicts: Verdicts, names: list[str], facts: Status, n: int, progress: Progress
) -> list[str]:
    full = facts["purified_size"] is None
    held = {position for (position,) in store.query("SELECT position FROM purified")}
    corrected = dict(store.query("SELECT position, label FROM corrections ORDER BY number"))
    is_held, by_person = (np.isin(verdicts.position, list(some)) for some in (held, corrected))
    is_unjudged = np.isnan(verdicts.probability)
    sure = np.argsort(-np.where(by_person, np.inf, verdicts.probability), kind="stable")  # NaN is last
    doubtful = np.argsort(verdicts.probability, kind="stable")
    is_rejected = ~verdicts.accepted & ~by_person & ~is_unjudged
    parts = []
    for title, rows, order in (
        (
            f"{'Believed' if full else 'Purified buffer'}, the surest first",
            sure[is_held[sure]],
            "by clean probability, highest first",
        ),
        ("Rejected, the most doubtful first", doubtful[is_rejected[doubtful]], "by clean probability, lowest first"),
        (f"Not judged, since {facts['unjudged_reason']}", np.flatnonzero(is_unjudged), ""),
    ):
        shown = rows[:n]
        if not len(shown) and not order:
            continue
        tiles = []
        for i, row in enumerate(shown.tolist()):
            if i % 100 == 0:
                progress("images", i, len(shown))
            [sample] = store.rows([int(verdicts.position[row])])
            code = corrected.get(sample.position, int(verdicts.label[row]))
            chance = "by a person" if by_person[row] else "not judged" if is_unjudged[row] else None
            probability = chance or float(verdicts.probability[row])
            tiles.append(Tile(sample.pixels, names[code], probability, sample.id))
        note = f"{len(shown):,} of {len(rows):,}{order and f', {order}'}; below each image its label."
        parts.append(page.section(title, page.paragraph(note, soft=True), page.gallery(tiles)))
    return parts


def _facts_section(store: Store, facts: Status) -> str:
    settings = asdict(store.settings)
    options = settings.pop("options", {})
    if store.settings.learner == FULL_MEMORY:  # it has no presets
        settings.pop("preset")
    rows = [*settings.items(), *options.items()]
    return page.section(
        "Settings and versions",
        page.table(("fact", "value"), [("size on disk", f"{facts['bytes'] / 2**20:,.1f} MiB"), *versions().items()]),
        page.details("All settings", page.table(("setting", "value"), rows)),
    )
