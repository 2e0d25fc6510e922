"""``milecastle completion``: the script that makes a shell complete verbs, options, threads."""

from __future__ import annotations

import click

from milecastle.cli.care_documents import CompletionDocument
from milecastle.cli.printing import print_document
from milecastle.cli.session import Session
from milecastle.cli.verb import verb

__all__ = ["command"]

_VARIABLE = "_MILECASTLE_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verb
def command(session: Session, shell: str) -> None:
    """Print the completion script of a shell.

    bash: eval "$(milecastle completion bash)" in ~/.bashrc. fish: put it into
    ~/.config/fish/completions/milecastle.fish.
    """
    from click.shell_completion import get_completion_class

    from milecastle.cli.main import cli

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    maker = found(cli, {}, "milecastle", _VARIABLE)
    script = maker.source_template % maker.source_vars()
    if session.as_json:
        print_document(CompletionDocument(shell=shell, script=script))
    else:
        click.echo(script)
