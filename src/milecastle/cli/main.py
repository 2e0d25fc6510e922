"""The command ``milecastle``: a group whose verbs are imported when they are used.

``--help`` imports no verb: the table below describes each, and a test compares the table with the
verbs themselves.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any, Final

import click

from milecastle.support.printable import printable
from milecastle.version import __version__

COMPLETION: Final = "_MILECASTLE_COMPLETE"
"""The variable with which a shell requests completions."""

VERBS: Final[dict[str, str]] = {
    "demo": "Kill a run in the middle and resume it, in a temporary folder.",
    "init": "Write a small project: a graph, its tests with crash_everywhere, and pyproject.toml.",
    "check": "Report all problems of a graph at once, with file and line.",
    "run": "Run a graph on a thread, to its end or an interrupt.",
    "build": "Build a file graph: run what is needed, and say why.",
    "plan": "Print what build would run and reuse, and why; run nothing.",
    "submit": "Queue a run for the workers, and return at once.",
    "worker": "Run submitted threads, many at once, until SIGTERM or Ctrl-C.",
    "serve": "Serve threads and runs over HTTP, until SIGTERM or Ctrl-C.",
    "mcp": "Serve graphs as durable tools over MCP, on standard input and output.",
    "dev": "Serve and run an app on this machine, and again whenever its code changes.",
    "workers": "List the workers of a store, with what they run and their last heartbeat.",
    "queue": "List how many threads are due, wait for their time, and run: by graph and tenant.",
    "shards": "Initialise the databases of a map, and move shards between them.",
    "schedules": "List the schedules of a graph; run, backfill, pause or resume one.",
    "retry": "Queue a thread whose run failed, was lost or was cancelled for the workers.",
    "resume": "Resume a thread from its last checkpoint.",
    "answer": "Answer an open question of a thread and resume it.",
    "send": "Send a message to a thread, whatever its run does.",
    "mailbox": "List the unread messages of a thread, oldest first.",
    "audit": "List the answers of a thread, oldest first, and who gave them.",
    "tag": "Add and remove tags of a thread, and list its tags.",
    "cancel": "Close the unfinished run of a thread.",
    "delete": "Delete a thread, its runs and its subgraphs.",
    "ls": "List threads.",
    "runs": "List runs, or show one with its failure.",
    "show": "Show a checkpoint with its state.",
    "why": "Explain why a thread does not run: every reason, and what to do.",
    "history": "List a thread's checkpoints, newest first.",
    "diff": "Show the differences between two checkpoints, by path.",
    "fork": "Go back to a checkpoint, in the same thread or in a new one.",
    "update": "Change the state of a thread by adding a checkpoint.",
    "graph": "Draw a graph.",
    "replay": "Compare recorded threads with the current code, without writing or calling steps.",
    "gc": "Delete or archive old checkpoints and threads.",
    "restore": "Move a thread's archived checkpoints back into the store.",
    "verify": "Read everything and report damage and where it is.",
    "repair": "Remove torn last lines from log files, saving copies.",
    "copy": "Copy threads from one store to another.",
    "migrate": "Migrate the tables of a store to the current version.",
    "doctor": "Check store, versions, permissions, clock, disk, queue and workers; suggest fixes.",
    "explain": "Explain an error code and how to fix it.",
    "completion": "Print the completion script for a shell.",
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        place = f"milecastle.cli.verbs.{cmd_name.replace('-', '_')}"
        module = importlib.import_module(place)  # noqa: TID251 - a name out of our own table
        found: click.Command = module.command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; click's own error messages are escaped like all other output."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise click.UsageError(printable(error.format_message()), error.ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
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
    """Durable state graphs: run them, inspect their threads, resume them."""


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A state may contain characters that the terminal cannot show; printing must not fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if COMPLETION in os.environ:
        from milecastle.cli.completing import register_bash

        register_bash()
    cli(prog_name="milecastle", complete_var=COMPLETION)


if __name__ == "__main__":
    main()
