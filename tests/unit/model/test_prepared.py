"""Many threads may read into the same class at once, also for the first time."""

from __future__ import annotations

import subprocess
import sys

import pytest

CONTROL = "from msgspec import convert"
OURS = "from milecastle.support.prepared import convert"

PROGRAM = """
import time
from threading import Thread

import msgspec
from msgspec import _utils
{imported}

evaluate = _utils._eval_type

def slowly(*args, **more):
    time.sleep(0.02)  # so that another thread looks at the class meanwhile
    return evaluate(*args, **more)

_utils._eval_type = slowly

class Inner(msgspec.Struct):
    a: "int"
    b: "int"

class Outer(msgspec.Struct):
    first: "Inner"
    second: "str"

def read() -> None:
    convert({{"first": {{"a": 1, "b": 2}}, "second": ""}}, Outer)

threads = [Thread(target=read) for _ in range(40)]
for thread in threads:
    thread.start()
    time.sleep(0.005)
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize(("imported", "code"), [(OURS, 0), (CONTROL, -11)])
def test_first_use_of_a_class_by_many_threads(imported: str, code: int) -> None:
    """The control shows that the fault can be had: without preparation the process crashes."""
    program = [sys.executable, "-c", PROGRAM.format(imported=imported)]
    assert subprocess.run(program, check=False, timeout=60).returncode == code
