"""The command ``milecastle``: a group whose verbs are imported when they are used.

``--help`` imports no verb: what each does stands in the table below, and a test holds the table
to the verbs themselves.
"""

from __future__ import annotations

import importlib
import io
import sys
from typing import Final

import click

from milecastle.version import __version__

__all__ = ["VERBS", "cli", "main"]

VERBS: Final[dict[str, str]] = {
    "check": "Report all problems of a graph at once, with file and line.",
    "run": "Run a graph on a thread, to its end or an interrupt.",
    "resume": "Go on with a thread from its last checkpoint.",
    "answer": "Answer the question at which a thread waits, and go on.",
    "ls": "List threads.",
    "runs": "List runs, or show one with its failure.",
    "show": "Show a checkpoint with its state.",
    "history": "List a thread's checkpoints, newest first.",
    "diff": "Show what differs between two checkpoints, by path.",
    "fork": "Go back to a checkpoint, here or as a thread of its own.",
    "update": "Change the state of a thread by a checkpoint of its own.",
    "graph": "Draw a graph.",
    "export-test": "Write a test from a recorded checkpoint.",
    "gc": "Let old checkpoints and threads go.",
    "verify": "Read everything and report damage with its place.",
    "repair": "Cut off torn last lines of logs in files, keeping copies.",
    "copy": "Copy threads from one store to another.",
    "migrate": "Bring the tables of a store up to date.",
    "doctor": "Check store, versions, permissions, clock and disk; say what to do.",
    "completion": "Print the completion script of a shell.",
}


class LazyGroup(click.Group):
    """A group that knows its verbs by name and loads one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one verb."""
        if cmd_name not in VERBS:
            return None
        place = f"milecastle.cli.verbs.{cmd_name.replace('-', '_')}"
        module = importlib.import_module(place)  # noqa: TID251 - a name out of our own table
        found: click.Command = module.command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without loading any."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for one that is not there, say which was probably meant."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, VERBS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " `milecastle --help` lists them."
            raise click.UsageError(f"there is no verb '{name}'.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 interrupted, 4 store unreachable, "
    "5 resume refused, 6 conflict, 130 stopped by Ctrl-C.",
)
@click.version_option(__version__, prog_name="milecastle", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable state graphs: run them, look at their threads, go on from where they stopped."""


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # What a state holds may not be in the terminal's alphabet; showing it must not fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    cli(prog_name="milecastle")


if __name__ == "__main__":
    main()
