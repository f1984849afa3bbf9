"""TVMScript that came with somebody's records is data: TVM's parser would run it."""

import pytest
from tchub.zoo.corpus.importers.tvmscript import check_script, read_script

SOUND = """@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 32), "float32"), C: T.Buffer((64, 32), "float32")):
    T.func_attr({"global_symbol": "main"})
    for i, j in T.grid(64, 32):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else(vi < 8, T.exp(A[vi, vj]), T.float32(0))
"""


def around(expression: str) -> str:
    """A script that evaluates something beside the program."""
    return SOUND + f"    T.evaluate({expression})\n"


def test_a_program_is_read():
    module = read_script(SOUND)
    assert "exp" in module.script()


ATTACKS = [
    around("__import__('os').system('touch harmed')"),
    around("open('harmed', 'w').write('x')"),
    around("eval('1')"),
    around("T.evaluate.__globals__['os']"),
    around("T.external_kernel.os.system('touch harmed')"),
    around("T.entry.inspect.os.system('touch harmed')"),
    around("T.axis.__class__"),
    around("A.__class__.__mro__"),
    around("A.data.__init__"),
    around("T.call_packed('runtime.SystemLib')"),
    around("T.call_extern('int32', 'system', 'ls')"),
    around("tvm.support.libinfo()"),
    around("(lambda: 0)()"),
    around("[x for x in (1, 2)][0]"),
    around("9 ** 9 ** 9 ** 9"),
    around("1 << 9999999999"),
    around("'a' * 9999999999"),
    around("(0,) * 9999999999"),
    around("f'{A}'"),
    "import os\n" + SOUND,
    "T = 0\n" + SOUND,
    SOUND.replace("T.prim_func(s_tir=True)", "exec"),
    SOUND.replace('"float32")):', '"float32") = open("harmed", "w")):'),
    "(" * 10_000,
    "x = 1\n" * 100_000,
    "\x00",
    "",
]


@pytest.mark.parametrize("script", ATTACKS)
def test_whatever_is_more_than_a_program_is_refused_before_tvm_reads_it(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="script"):
        read_script(script)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [None, 3, ["x"], "x" * (1 << 21)])
def test_what_is_no_script_is_said(value):
    with pytest.raises(ValueError, match="not a text"):
        check_script(value)
