"""While decoding, nothing is imported, compiled, executed or opened.

Audit hooks cannot be taken out again, so the watching happens in a separate process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
try:
    import numpy
except ImportError:
    numpy = None
from tests.unit.codec.test_fuzz import CORPUS, mutated, make_codec
from milecastle.codec.envelope import seal, unseal
from milecastle.errors import CodecError
import random

corpus = [*CORPUS, ["words"] * 5000, *([numpy.zeros(3)] if numpy else [])]
writer = make_codec()
payloads = [seal(writer.encode(value)) for value in corpus]
reader = make_codec()
chance = random.Random(3)
bodies = [unseal(payload) for payload in payloads]
damaged = [mutated(chance.choice(bodies), chance) for _ in range(2000)]
seen = []
watching = False

def hook(event, arguments):
    if watching and (event.split(".")[0] in {watched!r} or event in {watched!r}):
        seen.append((event, str(arguments)[:200]))

sys.addaudithook(hook)
{before}
watching = True
{provocation}
values = [reader.decode(unseal(payload)) for payload in payloads]
for data in damaged:
    try:
        reader.decode(data)
    except CodecError:
        pass
watching = False
assert len(values) == len(corpus)
if seen:
    sys.exit(str(seen[:5]))
"""
WATCHED = {
    "import", "exec", "compile", "open", "os", "subprocess", "socket", "ctypes", "marshal",
    "pickle", "code", "shutil", "tempfile", "glob",
}  # fmt: skip


def run(provocation: str = "") -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[3])
    script = SCRIPT.format(root=root, watched=WATCHED, before="", provocation=provocation)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )


def test_decoding_imports_opens_and_executes_nothing() -> None:
    done = run()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "provocation", ["import wave", "compile('1', 'x', 'eval')", "open('/dev/null').close()"]
)
def test_the_watcher_sees_what_it_watches_for(provocation: str) -> None:
    done = run(provocation)
    assert done.returncode == 1
    assert provocation.split("(")[0].split()[0] in done.stderr
