"""Completion: thread names from the configured store, quoted for the shell."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from milecastle.cli.addressing import bash_word
from milecastle.support.printable import is_unsafe

_MOST = 50


class QuotingBash(BashComplete):
    """Completion for bash that inserts names as words, whatever they contain.

    Click's script expands each name as bash expands an unquoted variable.
    """

    source_template = r"""
%(complete_func)s() {
    local response line
    response=$(IFS=$'\n'; env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
        %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${line#plain,}") ;;
        esac
    done <<< "$response"
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{bash_word(str(item.value))}"


def register_bash() -> None:
    add_completion_class(QuotingBash)


def complete_threads(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Threads whose names start with the typed text; none if anything fails.

    Names that cannot be typed are omitted: the shells' protocols consist of lines.
    """
    from itertools import islice, takewhile

    from milecastle.app.threads.children import own_threads
    from milecastle.cli.session import Session

    flags = context.params
    session = Session(store=flags.get("store"), tenant=flags.get("tenant"))
    try:
        if session.url() is None:
            return []
        before = incomplete[:-1] or None
        found = own_threads(session.store(), session.tenant, after=before)
        wanted = takewhile(lambda info: info.key.thread[: len(incomplete)] <= incomplete, found)
        begun = (
            info
            for info in wanted
            if info.key.thread.startswith(incomplete) and not any(map(is_unsafe, info.key.thread))
        )
        threads = islice(begun, _MOST)
        return [CompletionItem(info.key.thread, help=info.status) for info in threads]
    except Exception:  # completion cannot show errors
        return []
    finally:
        session.close()
