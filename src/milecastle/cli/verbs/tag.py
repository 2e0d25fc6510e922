from __future__ import annotations

import click

from milecastle.app.threads.tagging import change_tags
from milecastle.cli.addressing import find_thread
from milecastle.cli.completing import complete_threads
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.model.tags import TagChange
from milecastle.views.documents import TagDocument


@click.command("tag")
@click.argument("thread", shell_complete=complete_threads)
@click.option("--add", metavar="TAG", multiple=True, help="A tag to add; may be repeated.")
@click.option("--remove", metavar="TAG", multiple=True, help="A tag to remove; may be repeated.")
@app_option
@verb
def command(session: Session, thread: str, add: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Add and remove tags of a thread, and list its tags.

    Without --add and --remove they are only listed. A run in progress does not notice. `ls --tag`
    lists the threads that have a tag.
    """
    store = session.store()
    key = find_thread(store, session.tenant, thread)
    tags = change_tags(store, key, TagChange.of(add, remove))
    session.report(TagDocument(tenant=key.tenant, thread=key.thread, tags=tags), tags)
