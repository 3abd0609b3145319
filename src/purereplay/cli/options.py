"""The options that describe a run, declared once for `run`, `estimate` and `sweep`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from purereplay.cli.app import Device, Seed, SetOption, overrides
from purereplay.errors import UserError
from purereplay.learners.registry import PRESETS, names

if TYPE_CHECKING:
    from purereplay.data.encoders import EncoderFacts
    from purereplay.evaluate.settings import RunSettings

Dataset = Annotated[str, typer.Option(help="Dataset; `purereplay datasets` lists them.")]
Noise = Annotated[
    str | None,
    typer.Option(
        help="symmetric, asymmetric, superclass or none. (default: symmetric; none if the labels are noisy already)"
    ),
]
NoiseRate = Annotated[float, typer.Option(help="Share of wrong labels in each affected class, 0 to 1.")]
Episode = Annotated[str, typer.Option(help="Classes that form the tasks: A (as in the paper), B or C.")]
LearnerName = Annotated[str, typer.Option("--learner", help=f"Learner: {', '.join(names())}.")]
Preset = Annotated[str, typer.Option(help=f"Preset: {', '.join(PRESETS)}; see `purereplay settings`.")]
Budget = Annotated[float, typer.Option(help="Factor on the preset's self-supervised epochs.")]
Precision = Annotated[
    str,
    typer.Option(
        help="float32; tf32 or bf16 (faster, with more rounding); auto: bf16 on CUDA, float32 on the CPU. "
        "Each precision gives the same bits every time on the same device."
    ),
]
Robust = Annotated[
    str | None, typer.Option(help="Loss against wrong labels, for learners that take one: l2r, pencil, sl or jocor.")
]
Filter = Annotated[
    str | None,
    typer.Option("--filter", help="Filter of the delayed buffers: self-centered, aum, incv or none."),
]
Graphs = Annotated[
    str | None, typer.Option(help="Graphs that the Self-Centered filter samples; none: the similarity graph itself.")
]
FeaturesFile = Annotated[
    Path | None,
    typer.Option(
        help="npz file: the filter compares its array `features`, one row per training image, "
        "instead of an expert network's features."
    ),
]
RunEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help="Learn the features of this encoder instead of images: onnx:FILE, torch:FILE, python:MODULE:FUNCTION, "
        "timm:NAME, hf:NAME or none. For spr and its relatives; see docs/encoders.md.",
    ),
]
Validation = Annotated[
    bool,
    typer.Option(
        "--validation",
        help="Evaluate on a tenth of the training data, held out from the stream, instead of the test set: "
        "for choosing settings.",
    ),
]
Evaluate = Annotated[
    str,
    typer.Option(
        help="tasks: evaluate after each task; end: at the end only, with the same final numbers. GDumb then trains "
        "one classifier instead of one per task."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Compute on a Ray cluster: ray starts one on this machine, ray=ADDRESS joins one. "
        "(default: in this process)"
    ),
]
_SINGLE = (
    "device",
    "precision",
    "features_file",
    "encoder",
    "validation",
    "evaluate",
    "set_",
)  # options that `sweep` takes once, not as lists


def run_settings(
    dataset: Dataset = "digits",
    noise: Noise = None,
    noise_rate: NoiseRate = 0.4,
    episode: Episode = "A",
    learner: LearnerName = "spr",
    preset: Preset = "default",
    seed: Seed = 1,
    budget: Budget = 1.0,
    device: Device = "auto",
    precision: Precision = "auto",
    robust: Robust = None,
    filter_: Filter = None,
    graphs: Graphs = None,
    features_file: FeaturesFile = None,
    encoder: RunEncoder = None,
    validation: Validation = False,
    evaluate: Evaluate = "tasks",
    set_: SetOption = None,
) -> Any:
    """Return the settings of the run that the options describe."""
    chosen = overrides(set_, robust=robust, filter=filter_, graphs=graphs)
    _check_names(chosen, [learner])
    return _resolve(
        chosen,
        dataset=dataset,
        noise=noise,
        noise_rate=noise_rate,
        episode=episode,
        learner=learner,
        preset=preset,
        seed=seed,
        budget=budget,
        device=device,
        precision=precision,
        features_file=features_file,
        encoder=named_encoder(encoder),
        validation=validation,
        evaluate=evaluate,
    )


def _resolve(
    chosen: dict[str, str], *, learner: str, preset: str, features_file: Path | None, **others: Any
) -> RunSettings:
    from purereplay.evaluate.settings import resolve

    return resolve(
        learner=learner,
        preset_name=preset,
        features_file=None if features_file is None else str(features_file),
        overrides=_settings_of(learner, chosen),
        **others,
    )


def named_encoder(text: str | None) -> EncoderFacts | None:
    """Open the encoder that the user names; None if there is none."""
    if text in (None, "none"):
        return None
    from purereplay.evaluate.encoded import name_encoder

    return name_encoder(str(text))


def _check_names(chosen: dict[str, str], learners: list[str]) -> None:
    """Raise UserError if the setting of one learner, as in `gdumb.epochs`, concerns no run or is given twice."""
    for name in chosen:
        prefix, dot, setting = name.rpartition(".")
        if dot and prefix not in names():
            raise UserError(f"--set {name} names an unknown learner {prefix!r}: choose one of {', '.join(names())}.")
        if dot and prefix not in learners:
            raise UserError(f"--set {name} has no effect: {prefix} is not the learner of any run.")
        if dot and setting in chosen:
            other = next((f", or write {own}.{setting} for {own}" for own in learners if own != prefix), "")
            raise UserError(f"Both {setting} and {name} are given for {prefix}: leave one of them out{other}.")


def _settings_of(learner: str, chosen: dict[str, str]) -> dict[str, str]:
    """Return the settings that concern a learner; `gdumb.epochs` concerns gdumb only."""
    own = {}
    for name, value in chosen.items():
        prefix, dot, rest = name.rpartition(".")
        if not dot or prefix == learner:
            own[rest] = value
    return own


def sweep_settings(out: Path, values: dict[str, Any]) -> dict[Path, RunSettings]:
    """Return one run per combination of the lists among the values of the options of `run_settings`."""
    from purereplay.evaluate.sweep import combinations

    parameters = inspect.signature(run_settings).parameters
    kinds = get_type_hints(run_settings)
    single = {name: values[name] for name in _SINGLE if name != "set_"}
    single["encoder"] = named_encoder(values["encoder"])
    settings = overrides(values["set_"], robust=values["robust"], filter=values["filter_"], graphs=values["graphs"])
    own = ("robust", "filter_", "graphs", *_SINGLE)
    lists = {name: values[name] or "" for name in parameters if name not in own}
    _check_names(settings, [learner.strip() for learner in lists["learner"].split(",")])

    def one(chosen: dict[str, str]) -> RunSettings:
        options = {name: _typed(name, chosen[name], kinds[name]) for name in lists}
        return _resolve({name: chosen[name] for name in settings}, **single, **options)

    return combinations(lists | settings, one, out)


def _typed(name: str, text: str, kind: Any) -> Any:
    """Return the value of an option given as text."""
    numbers: dict[Any, str] = {int: "whole numbers", float: "numbers"}
    if kind not in numbers:
        return text or None
    try:
        return kind(text)
    except ValueError:
        raise UserError(f"--{name.replace('_', '-')} takes {numbers[kind]}, not {text!r}.") from None


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `run_settings`; its argument `settings` is their result."""

    def called(values: dict[str, Any], shared: dict[str, Any]) -> None:
        command(settings=run_settings(**shared), **values)

    return _with_options(command, called, lists=False)


def takes_lists_of_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `run_settings` as comma-separated lists; its argument `runs` is their result."""

    def called(values: dict[str, Any], shared: dict[str, Any]) -> None:
        elsewhere = values.get("cluster") is not None and shared["device"] == "cuda"  # this machine may have no GPU
        runs = sweep_settings(values["out"], shared | ({"device": "cpu"} if elsewhere else {}))
        if elsewhere:
            from purereplay.evaluate.ray_cluster import on_gpus

            runs = {path: on_gpus(settings) for path, settings in runs.items()}
        command(runs=runs, **values)

    return _with_options(command, called, lists=True)


def _with_options(
    command: Callable[..., None], called: Callable[[dict[str, Any], dict[str, Any]], None], *, lists: bool
) -> Callable[..., None]:
    own = [p for p in inspect.signature(command).parameters.values() if p.name not in ("settings", "runs")]
    shared = list(inspect.signature(run_settings).parameters.values())
    local = {"RunSettings": object}  # takes long to import
    kinds = get_type_hints(command, localns=local, include_extras=True)
    kinds |= get_type_hints(run_settings, include_extras=True)
    if lists:
        for i, p in enumerate(shared):
            if p.name not in _SINGLE:
                kinds[p.name] = _as_list(kinds[p.name])
                shared[i] = p.replace(default=f"{p.default:g}" if isinstance(p.default, int | float) else p.default)

    def wrapper(**values: Any) -> None:
        options = {p.name: values.pop(p.name) for p in shared}
        called(values, options)

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    parameters = [p.replace(annotation=kinds[p.name], kind=p.KEYWORD_ONLY) for p in (*own, *shared)]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    wrapper.__annotations__ = {p.name: kinds[p.name] for p in parameters}
    return wrapper


def _as_list(kind: Any) -> Any:
    """Return the type of an option that takes a list as text, with the same name and help."""
    option = get_args(kind)[1]
    return Annotated[str | None, option]
