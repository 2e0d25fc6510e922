from __future__ import annotations

import click

from milecastle.cli.session import Session
from milecastle.cli.verb import verb
from milecastle.views.documents import CompletionDocument


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verb
def command(session: Session, shell: str) -> None:
    """Print the completion script for a shell.

    bash: eval "$(milecastle completion bash)" in ~/.bashrc. fish: put it into
    ~/.config/fish/completions/milecastle.fish.
    """
    from click.shell_completion import get_completion_class

    from milecastle.cli.completing import register_bash
    from milecastle.cli.main import COMPLETION, cli

    register_bash()
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    maker = found(cli, {}, "milecastle", COMPLETION)
    script = maker.source_template % maker.source_vars()
    session.report(CompletionDocument(shell=shell, script=script), script.splitlines())
