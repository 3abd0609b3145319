"""What a run is, as options: said once, for every command that takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from purereplay.cli.app import Device, Preset, Seed, SetOption, overrides

if TYPE_CHECKING:
    from purereplay.evaluate.settings import RunSettings

Dataset = Annotated[str, typer.Option(help="Which data; `purereplay datasets` lists them.")]
Noise = Annotated[
    str | None,
    typer.Option(
        help="symmetric, asymmetric, superclass or none (symmetric unless said; none where labels come noisy)."
    ),
]
NoiseRate = Annotated[float, typer.Option(help="Share of wrong labels in each touched class, 0 to 1.")]
Episode = Annotated[str, typer.Option(help="Which classes form the tasks: A (the paper's), B or C.")]
LearnerName = Annotated[
    str,
    typer.Option(
        "--learner",
        help="Who learns: spr; its parts self-replay, self-centered-filter; "
        "finetune, ewc, crs, prs, mir, gdumb, multitask.",
    ),
]
Budget = Annotated[float, typer.Option(help="Factor on the preset's self-supervised epochs.")]
Precision = Annotated[
    str,
    typer.Option(
        help="float32; tf32 or bf16: faster, rounded more; auto: bf16 on CUDA, float32 on the CPU. "
        "Each gives the same bits every time on the same device, and other bits than the others."
    ),
]
Robust = Annotated[
    str | None, typer.Option(help="With crs, prs, mir or gdumb: l2r, pencil, sl or jocor, against wrong labels.")
]
Filter = Annotated[
    str | None, typer.Option("--filter", help="Who judges the delayed buffers: self-centered, aum, incv or none.")
]
Graphs = Annotated[
    str | None, typer.Option(help="Graphs that the Self-Centered filter samples; none: the similarities themselves.")
]
Features = Annotated[
    Path | None,
    typer.Option(help="npz file: its array `features`, a row for each training image, takes the experts' place."),
]
Validation = Annotated[
    bool,
    typer.Option(
        "--validation",
        help="Judge on a tenth of the training data, which the stream then goes without, in the place of the test "
        "data: for choosing settings.",
    ),
]


def asked(
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
    features: Features = None,
    validation: Validation = False,
    set_: SetOption = None,
) -> Any:
    """The settings of the run that the options ask for."""
    from purereplay.evaluate.settings import resolve

    return resolve(
        dataset=dataset,
        noise=noise,
        noise_rate=noise_rate,
        episode=episode,
        learner=learner,
        preset_name=preset,
        budget=budget,
        seed=seed,
        device=device,
        precision=precision,
        validation=validation,
        features=None if features is None else str(features),
        overrides=overrides(set_, robust=robust, filter=filter_, graphs=graphs),
    )


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose `settings` come from the options of `asked`; its other arguments stay its own."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]
    shared = list(inspect.signature(asked).parameters.values())
    names = {"RunSettings": object}  # takes long to import
    kinds = get_type_hints(command, localns=names, include_extras=True) | get_type_hints(asked, include_extras=True)

    def called(**values: Any) -> None:
        settings: RunSettings = asked(**{p.name: values.pop(p.name) for p in shared})
        command(settings=settings, **values)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    parameters = [p.replace(annotation=kinds[p.name], kind=p.KEYWORD_ONLY) for p in (*own, *shared)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer goes by
    called.__annotations__ = {p.name: kinds[p.name] for p in parameters}
    return called
