"""Generate the tables of the documentation from the files in results/.

    python docs/tables.py            rewrite every table (`make tables`)
    python docs/tables.py --check    write nothing; fail if a table differs from its result files

A page marks the place of a table by the lines `<!-- table: NAME -->` and `<!-- end -->`. TABLES declares each table:
its files, which of their results make a row, and what its columns show. Two tables list names of the code. The parts
are in table_parts.py.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from table_parts import (
    NOISES,
    BesidePaper,
    Ideas,
    Misses,
    Names,
    Opinions,
    Paper,
    Row,
    Runs,
    Table,
    Verdicts,
    each_seed,
    field_of,
    in_paper,
    mean,
    mean_over_noises,
    n_runs,
    p_value,
    seconds,
    share_of_class,
    steps_a_second,
)

from purereplay.learners.registry import PRESETS, entries
from purereplay.paper.numbers import Column as Noise

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- table: (\S+) -->\n)(?:\|.*\n)*(<!-- end -->)")

BY_NOISE = {str(noise): mean(noise=noise) for noise in NOISES} | {"mean": mean_over_noises}
NO_NOISE = {"no noise": mean(noise=Noise("none", 0.0))}
MEANS_BY_NOISE = {str(noise): mean(noise=noise, spread=False) for noise in NOISES} | {"mean": mean_over_noises}
FILTERING = {"accuracy": mean("accuracy"), "filtered noise": mean("filtered_noise"), "purity of P": mean("purity")}
FILTERING |= {"noise in what passes the filter": mean("passed_noise")}
MEASURES = FILTERING | {"forgetting": mean("forgetting")}

MNIST = "mnist-full/*.json mnist-filters.jsonl mnist-self-replay.jsonl mnist-baselines.jsonl"
CIFAR10_TENTH = "cifar10-budget-0.1.jsonl cifar10-symmetric-0.4-budget-0.1/*.json"
SMALL_STEM = "cifar10-symmetric-0.4-budget-0.02-small-stem/*.json"
MNIST_ACCURACY = BesidePaper(files=MNIST, dataset="mnist")
MNIST_FILTERS = BesidePaper(files=MNIST, dataset="mnist", name="filtering_e5")
MNIST_FILTERS_20 = BesidePaper(files="mnist-filters.jsonl", dataset="mnist", name="filtering_e20")
MNIST_APPENDIX = {
    name: BesidePaper(files=f"{MNIST} mnist-appendix.jsonl", dataset="mnist", name=name)
    for name in ("half_buffer", "double_buffer", "episode_b", "episode_c")
}
CIFAR10_FULL = "cifar10-symmetric-0.4-full/*.json"
CIFAR10 = f"{CIFAR10_FULL} cifar10-baselines.jsonl cifar10-accuracy.jsonl"
CIFAR10_ACCURACY = BesidePaper(files=CIFAR10, dataset="cifar10")
CIFAR10_APPENDIX = {
    name: BesidePaper(files=f"{CIFAR10} cifar10-appendix.jsonl", dataset="cifar10", name=name)
    for name in ("half_buffer", "double_buffer", "episode_b", "episode_c")
}
CIFAR10_FILTERS = BesidePaper(files=CIFAR10_FULL, dataset="cifar10", name="filtering_e5")


def _technique(learner: str, robust: str, noise: Noise = NOISES[1], **changed: float) -> Runs:
    where = {"learner": learner, "robust": robust, "noise": noise.noise, "noise_rate": noise.rate, "changed": changed}
    return Runs(files="mnist-techniques.jsonl", where=where)


def _crs(optimizer: str, lr: float) -> Runs:
    return Runs(files="mnist-crs-rates.jsonl", where={"changed": {"optimizer": optimizer, "lr": lr}})


def _multitask(**changed: Any) -> Runs:
    return Runs(files="mnist-multitask-rates.jsonl", where={"changed": changed})


def _baseline(files: str, learner: str, robust: str = "none", **where: Any) -> Runs:
    return Runs(files=files, where={"learner": learner, "robust": robust, **where})


def _graphs(n: int) -> Runs:
    where = {"filter": "self-centered", "graphs": n}
    return Runs(files="mnist-filters.jsonl", where=where, measure="filtered_noise")


def _patches(learner: str, budget: float, **changed: str) -> Runs:
    where = {"learner": learner, "budget": budget, "changed": {"features": "patches", **changed}}
    return Runs(files="cifar10-patches.jsonl", where=where)


def _combined(dataset: str, **changed: str) -> Runs:
    return Runs(files="combined-features.jsonl", where={"dataset": dataset, "changed": changed})


def _width(judged_on: str, **changed: int) -> Runs:
    return Runs(files="digits-width.jsonl", where={"judged_on": judged_on, "changed": changed})


def _pure(dataset: str, **changed: Any) -> Runs:
    return Runs(files="pure-replay/validation.jsonl", where={"dataset": dataset, "changed": changed})


def _distilled(weight: float, dataset: str = "digits", **changed: Any) -> Runs:
    changed |= {"distillation": weight} if weight else {}  # 0 was the default of all presets then
    return Runs(files="pure-replay/distillation.jsonl", where={"dataset": dataset, "changed": changed})


def _preset_of_demo(row: Row) -> Runs:
    assert isinstance(row, Runs)
    return _width(row.where["judged_on"])


def _in_tf32(row: Row) -> Runs:
    assert isinstance(row, Runs)
    return Runs(files="mnist-baselines.jsonl", where=row.where)


def _mnist_experts(measure: str) -> Runs:
    """The runs of SPR with the seeds of those with patches."""
    return Runs(files=" ".join(f"mnist-full/*-seed-{seed}.json" for seed in (1, 2, 3)), measure=measure)


RIVALS = ["er-ace", "der++", "scr", "er-mkd", "puridiver", "cnll", "aer"]
DIGITS_LEARNERS = ["pure-replay", "spr", "crs", "er-ace", "der++", "scr", "er-mkd", "gdumb", "puridiver", "cnll", "aer"]
NO_CEILING = {"purified_ceiling": 1.0, "admission": "partitioned"}
PURE_COLUMNS = {
    f"{noise}: {head}": mean(measure, noise, spread=False)
    for noise in (NOISES[1], NOISES[4])
    for head, measure in (("accuracy", "accuracy"), ("AUROC", "auroc"), ("purity of P", "purity"))
}
WIDE = {"hidden": 256, "expert_epochs": 300, "base_epochs": 100}
SHORT = {"expert_epochs": 300, "base_epochs": 100}
LONG = {"expert_epochs": 600, "base_epochs": 200}
RESTART = {"base_schedule": "restart", "replay": "halves-distinct"}
PRECISION = "mnist-fast-and-plain/{}-*.json"
LIVE = {"patches": "live/{}-*.json", "experts": "live/experts/{}-*.json"}
LIVE |= {"combined": "live/combined/{}-*.json"}

TABLES: dict[str, Table | Names | Opinions | Ideas | BesidePaper | Verdicts | Misses] = {
    # README.md, docs/index.md
    "summary": Table(
        head="data, wrong labels",
        rows={
            **{f"MNIST, {noise} %": Runs(files=f"mnist-full/{noise.noise}-{noise.rate:g}-*.json") for noise in NOISES},
            "MNIST, symmetric 40 %, Pure Replay": Runs(
                files="pure-replay/mnist.jsonl", where={"noise": "symmetric", "noise_rate": 0.4}
            ),
            "CIFAR-10, symmetric 40 %": Runs(files=CIFAR10_FULL),
            "CIFAR-10, symmetric 40 %, Pure Replay": Runs(
                files="pure-replay/cifar10.jsonl", where={"noise": "symmetric", "noise_rate": 0.4}
            ),
            "CIFAR-100, random symmetric 40 %, Pure Replay": Runs(
                files="pure-replay/cifar100.jsonl", where={"noise_rate": 0.4}
            ),
            "digits (the demo), symmetric 40 %": _width("test"),
            "digits (the demo), symmetric 40 %, Pure Replay": Runs(
                files="pure-replay/digits.jsonl", where={"learner": "pure-replay"}
            ),
        },
        columns={
            "accuracy, %": mean("accuracy"),
            "accuracy in the paper": in_paper("overall_accuracy", "cifar100_accuracy"),
            "filtered noise, %": mean("filtered_noise"),
            "filtered noise in the paper": in_paper("filtering_e5", "cifar100_filtering"),
            "runs": n_runs,
            "seconds a run": seconds("total"),
            "hardware": field_of("device"),
        },
    ),
    # docs/benchmarks.md
    "learners": Names(head="learner", described={entry.name: entry.summary for entry in entries()}),
    "presets": Names(head="preset", described=PRESETS),
    # docs/pure-replay.md
    "opinions": Opinions(file="opinions/cifar10.jsonl"),
    "pure-mnist": Table(
        head="MNIST, %",
        rows={
            "Pure Replay": Runs(files="pure-replay/mnist.jsonl"),
            "SPR": Runs(files="mnist-full/*.json"),
            "SPR, paper": Paper(dataset="mnist"),
        },
        columns=BY_NOISE,
    ),
    "pure-cifar10": Table(
        head="CIFAR-10, %",
        rows={
            "Pure Replay": Runs(files="pure-replay/cifar10.jsonl"),
            "SPR, a tenth of the epochs": Runs(files=CIFAR10_TENTH),
            "SPR, paper": Paper(dataset="cifar10"),
            "Pure Replay, AUROC": Runs(files="pure-replay/cifar10.jsonl", measure="auroc"),
            "Pure Replay, purity of P": Runs(files="pure-replay/cifar10.jsonl", measure="purity"),
        },
        columns=BY_NOISE | NO_NOISE,
    ),
    "pure-mnist-rivals": Table(
        head="MNIST, %",
        rows={
            "pure-replay": Runs(files="pure-replay/mnist.jsonl"),
            "spr": Runs(files="mnist-full/*.json"),
            **{name: Runs(files="pure-replay/mnist-rivals.jsonl", where={"learner": name}) for name in RIVALS},
        },
        columns=BY_NOISE | {"runs": n_runs},
    ),
    "mnist-rival-lr": Table(
        head="validation accuracy, %",
        rows={
            f"{name}, {lr:g}": Runs(
                files="pure-replay/mnist-rival-rates.jsonl",
                where={"learner": name, "changed": {} if lr == 2e-5 else {"lr": lr}},
            )
            for name in ("er-ace", "der++", "er-mkd", "scr")
            for lr in (2e-5, 1e-4, 5e-4, 2e-3)
        },
        columns={str(noise): mean(noise=noise) for noise in (NOISES[1], NOISES[4])} | {"mean": mean()},
    ),
    "pure-cifar10-rivals": Table(
        head="CIFAR-10, seed 1, %",
        rows={
            "pure-replay": Runs(files="pure-replay/cifar10.jsonl", where={"seed": 1}),
            **{
                name: Runs(files="pure-replay/cifar10-rivals.jsonl", where={"learner": name})
                for name in ("er-ace", "der++", "scr", "er-mkd", "cnll")
            },
        },
        columns=MEANS_BY_NOISE,
    ),
    "pure-cifar100": Table(
        head="CIFAR-100, random symmetric, seed 1",
        rows={
            f"{noise.rate:.0%}".replace("%", " %"): Runs(
                files="pure-replay/cifar100.jsonl", where={"noise_rate": noise.rate}
            )
            for noise in NOISES[:2]
        },
        columns={
            "accuracy, %": mean(),
            "SPR in the paper": in_paper("cifar100_accuracy"),
            "AUROC, %": mean("auroc"),
            "filtered noise, %": mean("filtered_noise"),
            "SPR in the paper, filtered noise": in_paper("cifar100_filtering"),
            "purity of P, %": mean("purity"),
        },
    ),
    "pure-cifar10n": Table(
        head="CIFAR-10N, seed 1",
        rows={
            f"{labels} labels: {learner}": Runs(
                files="pure-replay/cifar10n.jsonl", where={"dataset": dataset, "learner": learner}
            )
            for labels, dataset, learner in (
                ("worst", "cifar10n", "pure-replay"),
                ("worst", "cifar10n", "er-mkd"),
                ("worst", "cifar10n", "er-ace"),
                ("random 1", "cifar10n-random1", "pure-replay"),
                ("aggregate", "cifar10n-aggregate", "pure-replay"),
            )
        },
        columns={
            "accuracy, %": mean(),
            "AUROC, %": mean("auroc"),
            "purity of the memory, %": mean("purity"),
            "wrong labels in the stream, %": mean("stream_noise"),
        },
    ),
    "pure-ablation": Table(
        head="CIFAR-10, symmetric 40 %, seed 1",
        rows={
            "Pure Replay": Runs(
                files="pure-replay/cifar10.jsonl", where={"noise": "symmetric", "noise_rate": 0.4, "seed": 1}
            ),
            **{
                f"without {part}": Runs(files="pure-replay/cifar10-ablation.jsonl", where={"changed": {setting: off}})
                for part, setting, off in (
                    ("labels of P", "purified_weight", 0.0),
                    ("labels of D", "delayed_weight", 0.0),
                    ("NT-Xent", "contrastive_weight", 0.0),
                    ("moving average", "average", 0.0),
                    ("features of the base", "base_features", False),
                    ("opinion", "sharpening", 0.0),
                    ("agreement", "agreement", 0.0),
                )
            },
        },
        columns={"accuracy, %": mean(), "AUROC, %": mean("auroc"), "purity of P, %": mean("purity")},
    ),
    "pure-stem": Table(
        head="CIFAR-10, symmetric 40 %",
        rows={
            "Pure Replay, 3×3 stem": Runs(
                files="pure-replay/cifar10.jsonl", where={"noise": "symmetric", "noise_rate": 0.4}
            ),
            "Pure Replay, ImageNet stem": Runs(files="pure-replay/cifar10-stem.jsonl"),
            "SPR, a fiftieth of the epochs, 3×3 stem": Runs(files=SMALL_STEM),
            "SPR, a fiftieth of the epochs, ImageNet stem": Runs(
                files="cifar10-symmetric-0.4-budget-0.02/continuing-*.json"
            ),
        },
        columns={"accuracy, %": mean(), "purity of P, %": mean("purity"), "runs": n_runs},
    ),
    "pure-digits": Table(
        head="digits, symmetric 40 %, preset demo",
        rows={name: Runs(files="pure-replay/digits.jsonl", where={"learner": name}) for name in DIGITS_LEARNERS},
        columns={"accuracy, %": mean("accuracy"), "purity of the memory, %": mean("purity"), "runs": n_runs},
    ),
    "pure-digits-validation": Table(
        head="digits, validation data, seeds 11 to 16",
        rows={
            "pure-replay": _distilled(1.0),
            "`distillation=0.3`": _distilled(0.3),
            "without distillation": _distilled(0.0),
            "without distillation and ceiling": Runs(
                files="pure-replay/digits-validation.jsonl", where={"learner": "pure-replay", "changed": NO_CEILING}
            ),
            "spr": Runs(files="pure-replay/digits-validation.jsonl", where={"learner": "spr"}),
        },
        columns={"accuracy, %": mean("accuracy"), "purity of the memory, %": mean("purity"), "runs": n_runs},
    ),
    "pure-distillation": Table(
        head="digits, preset demo, validation data, seeds 11 to 26, %",
        rows={
            name: Runs(files="pure-replay/distillation-16-seeds.jsonl", where={"changed": changed})
            for name, changed in (("with distillation", {}), ("without distillation", {"distillation": 0.0}))
        },
        columns=PURE_COLUMNS,
    ),
    "pure-steps": Table(
        head="digits, validation data, seeds 11 to 16, %",
        rows={
            f"`base_epochs={n}`" + (", as in the demo" if n == 60 else ""): Runs(
                files="pure-replay/digits-steps.jsonl", where={"changed": {} if n == 60 else {"base_epochs": n}}
            )
            for n in (5, 10, 20, 40, 60, 120, 240)
        },
        columns={
            **PURE_COLUMNS,
            "seconds a run": seconds("total"),
        },
    ),
    "pure-ideas": Ideas(
        file="pure-replay/ideas.jsonl",
        names={
            "none": "without distillation",
            "distil": "logits of the present average",
            "relabel": "labels by the average",
            "refresh": "scores of P refreshed",
        },
    ),
    "pure-cifar10-validation": Table(
        head="CIFAR-10, validation data, seed 11, %",
        rows={
            "Pure Replay": _pure("cifar10"),
            "`purified_ceiling=0.25`": _pure("cifar10", purified_ceiling=0.25),
            "without the ceiling": _pure("cifar10", **NO_CEILING),
            "without the ceiling, `base_batch=500`": _pure("cifar10", **NO_CEILING, base_batch=500),
            "without the ceiling, `base_epochs=8`": _pure("cifar10", **NO_CEILING, base_epochs=8),
            **{
                f"the same, `sharpening={s:g}`, `agreement={a:g}`": _pure(
                    "cifar10", **NO_CEILING, base_epochs=8, sharpening=s, agreement=a
                )
                for s, a in ((0.5, 0.5), (0.2, 0.6), (0.0, 0.8), (0.8, 0.0))
            },
        },
        columns=PURE_COLUMNS,
    ),
    "pure-mnist-validation": Table(
        head="MNIST, validation data, seed 11, %",
        rows={
            "Pure Replay": _pure("mnist"),
            "`base_batch=100`": _pure("mnist", base_batch=100),
            "without the ceiling": _pure("mnist", **NO_CEILING),
            "without the ceiling, `base_batch=100`": _pure("mnist", **NO_CEILING, base_batch=100),
            "without the ceiling, `purified_weight=3`": _pure("mnist", **NO_CEILING, purified_weight=3.0),
            "without the ceiling, `delayed_weight=0.3`": _pure("mnist", **NO_CEILING, delayed_weight=0.3),
            "without the ceiling, `average=0.999`": _pure("mnist", **NO_CEILING, average=0.999),
            "without the ceiling and NT-Xent": _pure("mnist", **NO_CEILING, contrastive_weight=0.0),
            "without the ceiling, `base_epochs=60`, `lr=0.001`": _pure("mnist", **NO_CEILING, base_epochs=60, lr=0.001),
            "without the ceiling, `crop_area=0.08`, `flip=0.5`": _pure("mnist", **NO_CEILING, crop_area=0.08, flip=0.5),
        },
        columns={
            "symmetric 20": mean(noise=NOISES[0], spread=False),
            "asymmetric 40": mean(noise=NOISES[4], spread=False),
        },
    ),
    # REPRODUCTION.md
    "verdicts": Verdicts(
        tables={
            "accuracy, MNIST": MNIST_ACCURACY,
            "accuracy, CIFAR-10": CIFAR10_ACCURACY,
            "filtered noise with 5 graphs, MNIST": MNIST_FILTERS,
            "filtered noise with 20 graphs, MNIST": MNIST_FILTERS_20,
            "half the buffer, MNIST": MNIST_APPENDIX["half_buffer"],
            "twice the buffer, MNIST": MNIST_APPENDIX["double_buffer"],
            "episode B, MNIST": MNIST_APPENDIX["episode_b"],
            "episode C, MNIST": MNIST_APPENDIX["episode_c"],
            "half the buffer, CIFAR-10": CIFAR10_APPENDIX["half_buffer"],
            "twice the buffer, CIFAR-10": CIFAR10_APPENDIX["double_buffer"],
            "episode B, CIFAR-10": CIFAR10_APPENDIX["episode_b"],
            "episode C, CIFAR-10": CIFAR10_APPENDIX["episode_c"],
            "filtered noise with 5 graphs, CIFAR-10": CIFAR10_FILTERS,
        }
    ),
    "mnist-accuracy": replace(MNIST_ACCURACY, combined=False),
    "mnist-filters": MNIST_FILTERS,
    "cifar10-accuracy": replace(CIFAR10_ACCURACY, combined=False),
    "cifar10-tenth": Table(
        head="CIFAR-10, %",
        rows={
            "accuracy, budget 0.1": Runs(files=CIFAR10_TENTH),
            "accuracy, paper": Paper(dataset="cifar10"),
            "filtered noise, budget 0.1": Runs(files=CIFAR10_TENTH, measure="filtered_noise"),
            "filtered noise, paper": Paper(dataset="cifar10", measure="filtered_noise"),
        },
        columns=BY_NOISE,
    ),
    "misses": Misses(
        table=MNIST_ACCURACY,
        groups={
            "CRS, PRS and MIR with JoCoR": "CRS + JoCoR,PRS + JoCoR,MIR + JoCoR",
            "MIR with SL": "MIR + SL",
            "Self-Replay": "Self-Replay",
        },
    ),
    # docs/experiments/mnist-baselines.md
    "mnist-accuracy-all": MNIST_ACCURACY,
    "mnist-techniques": Table(
        head="validation data, %",
        rows={
            "symmetric 40: CRS": _baseline(
                "mnist-crs-rates.jsonl",
                "crs",
                noise="symmetric",
                noise_rate=0.4,
                changed={"optimizer": "adam", "lr": 2e-5},
            ),
            **{
                f"symmetric 40: CRS + PENCIL, `pencil_lr={lr:g}`": _technique("crs", "pencil", pencil_lr=lr)
                for lr in (1e-6, 10.0, 30.0, 94.0, 200.0)
            },
            "symmetric 40: CRS + PENCIL": _technique("crs", "pencil"),
            "symmetric 40: GDumb + PENCIL": Runs(files="mnist-gdumb-pencil-rate.jsonl", where={"changed": {}}),
            "symmetric 40: GDumb + PENCIL, `pencil_lr_batch=128`": Runs(
                files="mnist-gdumb-pencil-rate.jsonl", where={"changed": {"pencil_lr_batch": 128}}
            ),
            "symmetric 40: MIR + JoCoR, `jocor_forget=0`": _technique("mir", "jocor", jocor_forget=0.0),
            "symmetric 40: MIR + JoCoR, `jocor_forget=0.2`": _technique("mir", "jocor", jocor_forget=0.2),
            "symmetric 40: MIR + JoCoR": _technique("mir", "jocor"),
            "symmetric 60: PRS + JoCoR, `jocor_forget=0`": _technique("prs", "jocor", NOISES[2], jocor_forget=0.0),
            "symmetric 60: PRS + JoCoR": _technique("prs", "jocor", NOISES[2]),
            "asymmetric 40: CRS + JoCoR, `jocor_forget=0`": _technique("crs", "jocor", NOISES[4], jocor_forget=0.0),
            "asymmetric 40: CRS + JoCoR": _technique("crs", "jocor", NOISES[4]),
            **{
                f"symmetric 40: Multitask, `lr=0.05`, `epochs={n}`": _technique("multitask", "none", epochs=n)
                for n in (1, 3, 10)
            },
            "symmetric 40: Multitask, `lr=0.05`": _technique("multitask", "none"),
        },
        columns={"accuracy": mean("accuracy"), "runs": n_runs},
    ),
    "mnist-multitask-rates": Table(
        head="Multitask, validation accuracy, %",
        rows={
            **{f"SGD, {lr:g}": _multitask(lr=lr) for lr in (5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02)},
            **{f"Adam, {lr:g}": _multitask(optimizer="adam", lr=lr) for lr in (5e-5, 1e-4)},
        },
        columns={str(noise): mean(noise=noise, spread=False) for noise in (NOISES[1], NOISES[4])},
    ),
    "digits-multitask-rates": Table(
        head="Multitask on digits, validation accuracy, %",
        rows={
            f"SGD, {lr:g}": Runs(
                files="digits-multitask-rates.jsonl", where={"changed": {"lr": lr} if lr < 0.05 else {}}
            )
            for lr in (2e-3, 0.01, 0.02, 0.05)
        },
        columns={str(noise): mean(noise=noise) for noise in (NOISES[1], NOISES[4])} | NO_NOISE,
    ),
    "mnist-multitask-test": Table(
        head="Multitask on MNIST, test accuracy, %",
        rows={
            "SGD, 0.002": _baseline("mnist-baselines.jsonl", "multitask"),
            "SGD, 0.05, the default": Runs(files="mnist-multitask-default.jsonl"),
        },
        columns={str(noise): mean(noise=noise) for noise in NOISES} | NO_NOISE,
    ),
    "mnist-classes": Table(
        head="asymmetric 40, accuracy by class, %",
        rows={
            "Self-Replay": Runs(files="mnist-self-replay.jsonl", where={"noise": "asymmetric", "noise_rate": 0.4}),
            "Multitask": _baseline("mnist-baselines.jsonl", "multitask", noise="asymmetric", noise_rate=0.4),
        },
        columns={str(number): share_of_class(number) for number in range(10)},
    ),
    # docs/experiments/learning-rates.md
    "mnist-crs-lr": Table(
        head="CRS, validation accuracy, %",
        rows={
            **{f"Adam, {lr:g}": _crs("adam", lr) for lr in (1e-5, 2e-5, 3e-5, 5e-5, 1e-4, 3e-4, 1e-3, 2e-3)},
            **{f"SGD, {lr:g}": _crs("sgd", lr) for lr in (1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)},
        },
        columns=MEANS_BY_NOISE | {"p against Adam, 2e-05": p_value(lambda row: _crs("adam", 2e-5))},
    ),
    "mnist-crs-sgd": Table(
        head="SGD at 0.01, test accuracy, %",
        rows={
            "CRS": _baseline("mnist-crs-sgd.jsonl", "crs"),
            "CRS + PENCIL": _baseline("mnist-crs-sgd.jsonl", "crs", "pencil"),
            "CRS + SL": _baseline("mnist-crs-sgd.jsonl", "crs", "sl"),
            "CRS + JoCoR": _baseline("mnist-crs-sgd.jsonl", "crs", "jocor"),
            "CRS, paper": Paper(dataset="mnist", method="CRS"),
        },
        columns=BY_NOISE,
    ),
    "cifar10-crs-lr": Table(
        head="CRS, learning rate of Adam",
        rows={
            f"{lr:g}": Runs(files="cifar10-crs-rates.jsonl", where={"changed": {"lr": lr}})
            for lr in (2e-5, 1e-4, 5e-4, 2e-3)
        },
        columns={"validation accuracy, %": mean("accuracy"), "runs": n_runs},
    ),
    # docs/experiments/filters.md
    "mnist-filters-20": MNIST_FILTERS_20,
    **{f"mnist-{name.replace('_', '-')}": table for name, table in MNIST_APPENDIX.items()},
    # docs/experiments/cifar10-baselines.md
    "cifar10-accuracy-all": CIFAR10_ACCURACY,
    **{f"cifar10-{name.replace('_', '-')}": table for name, table in CIFAR10_APPENDIX.items()},
    "mnist-graphs": Table(
        head="filtered noise, %",
        rows={
            "weighted graph, no sampling": _graphs(0),
            "5 sampled graphs": _graphs(5),
            "20 sampled graphs": _graphs(20),
            "weighted graph, paper": Paper(dataset="mnist", method="Non-stochastic", measure="filtered_noise"),
            "5 sampled graphs, paper": Paper(dataset="mnist", measure="filtered_noise"),
        },
        columns=BY_NOISE | {"p against 5 graphs": p_value(lambda row: _graphs(5))},
    ),
    # docs/experiments/budget.md
    "mnist-budget": Table(
        head="MNIST, symmetric 40, %",
        rows={
            "full scale, seeds 1–5": Runs(files="mnist-full/symmetric-0.4-*.json"),
            "budget 0.1, seeds 1–3": Runs(files="mnist-symmetric-0.4-budget-0.1/*.json"),
            "experts at full scale, base at 0.1, seeds 1–2": Runs(files="mnist-symmetric-0.4-full-experts/*.json"),
        },
        columns=MEASURES,
    ),
    "cifar10-budget": Table(
        head="CIFAR-10, symmetric 40, %",
        rows={
            "full scale, seed 1": Runs(files=CIFAR10_FULL),
            "budget 0.1, seed 1": Runs(files="cifar10-symmetric-0.4-budget-0.1/seed-1.json"),
            "budget 0.1, seeds 1–3": Runs(files="cifar10-symmetric-0.4-budget-0.1/*.json"),
        },
        columns=MEASURES,
    ),
    "cifar10-tenth-measures": Table(
        head="CIFAR-10, budget 0.1, %",
        rows={
            str(noise): Runs(files=CIFAR10_TENTH, where={"noise": noise.noise, "noise_rate": noise.rate})
            for noise in NOISES
        },
        columns=MEASURES,
    ),
    # docs/experiments/cifar10-stem.md
    "cifar10-stem": Table(
        head="CIFAR-10, symmetric 40, budget 0.02, %",
        rows={
            "SPR, ImageNet stem": Runs(files="cifar10-symmetric-0.4-budget-0.02/continuing-*.json"),
            "SPR, ImageNet stem, schedule restarted": Runs(files="cifar10-symmetric-0.4-budget-0.02/restart-*.json"),
            "SPR, 3×3 stem": Runs(files=SMALL_STEM),
            "SPR, 3×3 stem, schedule restarted, P drawn without replacement": Runs(
                files="cifar10-small-stem-variant.jsonl", where={"learner": "spr"}
            ),
            "Self-Centered filter, 3×3 stem": Runs(
                files="cifar10-small-stem-variant.jsonl", where={"learner": "self-centered-filter"}
            ),
        },
        columns=MEASURES,
    ),
    # docs/experiments/patches.md
    "patches": Table(
        head="symmetric 40, %",
        rows={
            "SPR on digits, experts": Runs(files="digits-patches.jsonl", where={"changed": {}}),
            "SPR on digits, patches": Runs(files="digits-patches.jsonl", where={"changed": {"features": "patches"}}),
            "Self-Centered filter on CIFAR-10, patches": _patches("self-centered-filter", 1.0),
            "SPR on CIFAR-10, budget 0.1, experts": Runs(files="cifar10-symmetric-0.4-budget-0.1/*.json"),
            "SPR on CIFAR-10, budget 0.1, patches": _patches("spr", 0.1),
            "SPR on CIFAR-10, budget 0.02, 3×3 stem, experts": Runs(files=SMALL_STEM),
            "SPR on CIFAR-10, budget 0.02, 3×3 stem, patches": _patches("spr", 0.02, stem="small"),
            "the same, schedule restarted, experts": Runs(
                files="cifar10-small-stem-variant.jsonl", where={"learner": "spr"}
            ),
            "the same, schedule restarted, patches": _patches("spr", 0.02, stem="small", **RESTART),
        },
        columns=FILTERING,
    ),
    "mnist-patches": Table(
        head="SPR on MNIST at full scale, %",
        rows={
            "accuracy, experts": _mnist_experts("accuracy"),
            "accuracy, patches": Runs(files="mnist-patches.jsonl"),
            "filtered noise, experts": _mnist_experts("filtered_noise"),
            "filtered noise, patches": Runs(files="mnist-patches.jsonl", measure="filtered_noise"),
        },
        columns=BY_NOISE
        | {
            "p against experts": p_value(lambda row: _mnist_experts(row.measure)),
        },
    ),
    # docs/experiments/combined-features.md
    "combined": Table(
        head="%",
        rows={
            "CIFAR-10, symmetric 40, budget 0.02, 3×3 stem: experts": Runs(files=SMALL_STEM),
            "CIFAR-10, symmetric 40, budget 0.02, 3×3 stem: patches": _patches("spr", 0.02, stem="small"),
            "CIFAR-10, symmetric 40, budget 0.02, 3×3 stem: combined": _combined(
                "cifar10", stem="small", features="combined"
            ),
            "MNIST, symmetric 60, budget 0.1: experts": _combined("mnist"),
            "MNIST, symmetric 60, budget 0.1: combined": _combined("mnist", features="combined"),
            "digits, symmetric 40: experts": _combined("digits"),
            "digits, symmetric 40: patches": _combined("digits", features="patches"),
            "digits, symmetric 40: combined": _combined("digits", features="combined"),
        },
        columns=FILTERING,
    ),
    "combined-seeds": Table(
        head="MNIST, symmetric 60, budget 0.1",
        rows={
            "experts": _combined("mnist"),
            "combined": _combined("mnist", features="combined"),
            "experts, paper at full scale": Paper(dataset="mnist"),
        },
        columns={
            "accuracy by seed, %": lambda row: "–" if isinstance(row, Paper) else each_seed(row),
            "accuracy, %": mean(noise=NOISES[2]),
            "filtered noise, %": mean("filtered_noise", NOISES[2]),
        },
    ),
    # docs/experiments/live-features.md
    "live-features": Table(
        head="%",
        rows={
            f"{images}: {features}": Runs(files=files.format(name))
            for name, images in (("digits", "digits, 8×8"), ("mnist", "MNIST, 28×28"), ("cifar10", "CIFAR-10, 32×32"))
            for features, files in LIVE.items()
        },
        columns={
            "area under the ROC curve": mean("auc"),
            "wrong among the accepted": mean("wrong_among_accepted"),
            "rejected": mean("rejected"),
            "accuracy on new images": mean("accuracy"),
            "seconds to learn": seconds("learn"),
        },
    ),
    # docs/experiments/demo-width.md
    "demo-width": Table(
        head="networks; epochs of experts and base; evaluated on",
        rows={
            f"{networks}; {on}": _width(on, **changed)
            for on in ("validation", "test")
            for networks, changed in (
                ("64-256-256; 300, 100", WIDE),
                ("64-128-128; 300, 100", SHORT),
                ("64-128-128; 450, 150 (the preset)", {}),
                ("64-128-128; 600, 200", LONG),
            )
            if (on, changed) != ("test", LONG)
        },
        columns={
            "seeds": n_runs,
            "accuracy, %": mean("accuracy"),
            "filtered noise, %": mean("filtered_noise"),
            "seconds a run": seconds("total"),
            "p of accuracy against the preset": p_value(_preset_of_demo),
            "p of filtered noise": p_value(_preset_of_demo, "filtered_noise"),
        },
    ),
    # docs/experiments/precision.md
    "spr-precision": Table(
        head="precision",
        rows={name: Runs(files=PRECISION.format(name)) for name in ("bf16", "float32")},
        columns={
            "accuracy, %": mean(),
            "by seed, 1 to 8": each_seed,
            "p against bf16": p_value(lambda row: Runs(files=PRECISION.format("bf16"))),
            "seconds a run": seconds("total"),
        },
    ),
    "baselines-precision": Table(
        head="baseline",
        rows={
            name: _baseline("mnist-baselines-float32.jsonl", learner, robust)
            for name, learner, robust in (
                ("GDumb", "gdumb", "none"),
                ("CRS", "crs", "none"),
                ("CRS + SL", "crs", "sl"),
                ("CRS + PENCIL", "crs", "pencil"),
                ("MIR, whose choice was in TF32 too", "mir", "none"),
            )
        },
        columns={
            "runs": n_runs,
            "accuracy in float32, %": mean_over_noises,
            "in TF32, %": lambda row: mean_over_noises(_in_tf32(row)),
            "p": p_value(_in_tf32),
        },
    ),
    # docs/performance.md
    "run-times": Table(
        head="seconds a run",
        rows={
            "SPR on MNIST, full scale, 5 runs together": Runs(files="mnist-full/*-seed-1.json"),
            "SPR on MNIST, full scale, 20 runs together": Runs(
                files=" ".join(f"mnist-full/*-seed-{seed}.json" for seed in (2, 3, 4, 5))
            ),
            "SPR on CIFAR-10, full scale, alone": Runs(files=CIFAR10_FULL),
            "SPR on CIFAR-10, budget 0.1, 3 runs together": Runs(files="cifar10-symmetric-0.4-budget-0.1/*.json"),
            "Self-Replay on MNIST, full scale, 15 runs together": Runs(files="mnist-self-replay.jsonl"),
            "the demo, 15 runs together": _width("test"),
        },
        columns={
            "device": field_of("device"),
            "experts": seconds("expert"),
            "base": seconds("base"),
            "finetuning": seconds("finetune"),
            "everything else": seconds("other"),
            "total": seconds("total"),
            "expert steps a second": steps_a_second("expert"),
            "base steps a second": steps_a_second("base"),
        },
    ),
}


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A page with its tables generated anew."""

    def generated(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise KeyError(f"The table {match[2]} is not declared in docs/tables.py.")
        lines = TABLES[match[2]].lines()
        lines.insert(1, ["---"] * len(lines[0]))
        return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in lines) + match[3]

    if text.count("<!-- table:") != len(MARKED.findall(text)):
        raise ValueError("Each `<!-- table: NAME -->` needs its `<!-- end -->`, with only a table between.")
    return MARKED.sub(generated, text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the tables of the documentation from results/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table would change")
    check = parser.parse_args().check
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if filled(text) == text:
            continue
        if check:
            sys.exit(f"The tables of {page.relative_to(ROOT)} differ from results/: run `make tables`.")
        page.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
