"""``milecastle export-test``: a test from what was recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import click

from milecastle.app.application import App
from milecastle.cli.addressing import Address, find_checkpoint
from milecastle.cli.care_documents import ExportDocument
from milecastle.cli.completing import complete_threads
from milecastle.cli.decoding import codec_of, read_chain
from milecastle.cli.literals import Source
from milecastle.cli.loading import check_reference
from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.cli.writing import stored_app
from milecastle.engine.hidden import ANSWERS, SENDS
from milecastle.engine.position import restore
from milecastle.errors import InvalidRequest

__all__ = ["command"]

_TEST = '''\
"""Made by `milecastle export-test {address}`: {what}, as {they} ran there."""

from __future__ import annotations

{imports}
BEFORE = {before}

{answers}CHANGED = {changed}


def test_{name}() -> None:
    assert run_step({attribute}, {nodes}, BEFORE{given}) == CHANGED
'''


class Recorded(NamedTuple):
    """A step that was recorded: what ran, on what, with which answers, and what it changed."""

    nodes: tuple[str, ...]
    before: dict[str, Any]
    answers: dict[str, Any]
    changed: dict[str, Any]


@click.command("export-test")
@click.argument("address", metavar="THREAD[@CHECKPOINT]", shell_complete=complete_threads)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="A file; else stdout."
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@app_option
@verb
def command(session: Session, address: str, output: str | None, force: bool) -> None:
    """Write a test from a recorded checkpoint.

    The nodes that wrote it, the state before them, and what they changed. The test runs the nodes
    as they are now, without a store. It holds values of the state: look at it before you share it.
    """
    app, store = stored_app(session)
    place = find_checkpoint(store, session.tenant, address)
    recorded = _recorded(session, app, place)
    text = _test(place, recorded, str(session.app_reference))
    if output:
        if Path(output).exists() and not force:
            raise click.UsageError(f"{output} is there already: --force overwrites it")
        Path(output).write_text(text, encoding="utf-8")
    if session.as_json:
        print_document(
            ExportDocument(
                thread=place.key.thread,
                seq=place.seq,
                nodes=recorded.nodes,
                file=output,
                test=text,
            )
        )
    elif output:
        print_lines([f"wrote {output}: {', '.join(recorded.nodes)} at {place}"])
    else:
        click.echo(text, nl=False)


def _recorded(session: Session, app: App[Any], place: Address) -> Recorded:
    """What was recorded of the step that wrote a checkpoint."""
    after = read_chain(session, place.key, place.seq)
    entry = after.entries[-1]
    if entry.source != "step" or entry.parent_id is None:
        raise InvalidRequest(
            f"{place} was written by '{entry.source}' and not by a node: choose a step, as "
            f"`milecastle history {place.key.thread}` lists them"
        )
    seq = session.store().locate(place.key, entry.parent_id)
    chain = session.store().read(place.key, seq) if seq else None
    if chain is None:
        raise InvalidRequest(f"the checkpoint before {place} is not there any more")
    codec = codec_of(session, place.key, after, app.graph)
    position = restore(chain, codec, app.graph.schema)
    if SENDS in position.hidden:
        raise InvalidRequest(f"{place} was written by a fan-out, which a test cannot repeat yet")
    before, now = position.values, restore(after, codec, app.graph.schema).values
    changed = {name: now[name] for name in now if name not in before or before[name] != now[name]}
    return Recorded(entry.nodes, before, position.hidden.get(ANSWERS, {}), changed)


def _test(place: Address, recorded: Recorded, reference: str) -> str:
    module, attribute = check_reference(reference)
    source = Source()
    before, changed = source.of(recorded.before), source.of(recorded.changed)
    name = re.sub(r"\W+", "_", f"{'_and_'.join(recorded.nodes)}_at_{place}".lower())
    several = len(recorded.nodes) > 1
    first = attribute.partition(".")[0]
    imports = sorted({*source.imports, "from milecastle.testing import run_step"})
    return _TEST.format(
        address=place,
        what=("nodes " if several else "node ") + ", ".join(recorded.nodes),
        they="they" if several else "it",
        imports="\n".join([*imports, f"from {module} import {first}", ""]),
        before=before,
        answers=f"ANSWERS = {source.of(recorded.answers)}\n\n" if recorded.answers else "",
        given=", answers=ANSWERS" if recorded.answers else "",
        changed=changed,
        name=name,
        attribute=attribute,
        nodes=source.of(list(recorded.nodes)),
    )
