"""The application that the commands belong to, and the options that several of them share.

Modules that take long to import are imported by the commands that need them, so that --help answers at once.
"""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from purereplay import __version__
from purereplay.errors import UserError

app = typer.Typer(
    name="purereplay",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Self-Purified Replay: learn continually from a stream whose labels you cannot trust.",
    epilog="Start with [bold]purereplay demo[/bold]. Every command has --help with examples.",
)

Seed = Annotated[int, typer.Option(help="Seed of noise, stream, networks and all random draws.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: CUDA if available.")]
Log = Annotated[str | None, typer.Option("--log", help="Send measurements to tensorboard or wandb as well.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change one setting of the learner; repeatable."),
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere.")] = False,
) -> None:
    if version:
        typer.echo(f"purereplay {__version__}")
        raise typer.Exit()


def join_help_lines() -> None:
    """Join the lines of each paragraph of the commands' help, since the terminal wraps them.

    Indented lines, as those of examples, and lists stay as they are.
    """
    for command in app.registered_commands:
        if command.callback is not None and command.callback.__doc__:
            paragraphs = inspect.cleandoc(command.callback.__doc__).split("\n\n")
            command.callback.__doc__ = "\n\n".join(map(_joined, paragraphs))


def _joined(paragraph: str) -> str:
    lines = paragraph.split("\n")
    is_text = not any(line.startswith((" ", "- ", "* ")) for line in lines)
    return " ".join(lines) if is_text else paragraph


def overrides(texts: list[str] | None, **named: str | None) -> dict[str, str]:
    """Return the settings given by --set NAME=VALUE and by options of their own."""
    found: dict[str, str] = {}
    spelled: dict[str, str] = {}  # as the user wrote it, by name
    for text in texts or []:
        given, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise UserError(f"--set takes NAME=VALUE, not {text!r}.")
        learner, dot, own = given.rpartition(".")
        name = learner + dot + own.replace("-", "_")
        if spelled.setdefault(name, given) != given:
            raise UserError(f"--set {spelled[name]} and --set {given} set the same value: leave one of them out.")
        if found.setdefault(name, value) != value:
            raise UserError(f"--set {given} is given as {found[name]} and as {value}: leave one of them out.")
    for name, option in named.items():
        if option is None:
            continue
        if name in found:
            raise UserError(f"--{name} and --set {name} set the same value: leave one of them out.")
        found[name] = option
    for name in found:
        if name.rpartition(".")[2] == "graphs":
            counts = found[name].split(",")
            found[name] = ",".join("0" if n.strip().lower() == "none" else n for n in counts)
    return found
