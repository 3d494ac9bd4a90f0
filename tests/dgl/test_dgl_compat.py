"""``import dgl`` with the help of ``manyhop_dgl``, each time in a process that has imported neither."""

import subprocess
import sys
import textwrap
from importlib.util import find_spec

import forks
import pytest
import torch

from manyhop.hints import pip_install

needs_dgl = pytest.mark.skipif(find_spec("dgl") is None, reason="DGL is not installed: pip install 'manyhop[dgl]'")
VERSION = torch.__version__.partition("+")[0]


def run(code, folder=None, python=None):
    command = [python or forks.python(), "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_dgl
def test_import_and_what_stays_unavailable(monkeypatch, tmp_path):
    # DGL itself would write into the home directory which backend it has chosen, and say so.
    monkeypatch.delenv("DGLBACKEND", raising=False)
    monkeypatch.delenv("DGLDEFAULTDIR", raising=False)
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    out = run(
        """
        import manyhop_dgl
        import dgl
        from manyhop_dgl import compat
        print(sorted(compat.unavailable()))
        print(compat.unavailable()["dgl.graphbolt"])
        g = dgl.graph(([0, 1], [1, 2]))
        print(g.num_nodes(), dgl.graphbolt.etype_tuple_to_str(("a", "b", "c")))
    """,
        python=sys.executable,
    )
    lines = out.splitlines()
    assert lines[0] == "['dgl.graphbolt']"
    assert f"has no build for torch {VERSION} (this DGL brings builds for 2.0.0" in lines[1]
    assert lines[2] == "3 a:b:c"


REFUSED = [
    ("dgl.graphbolt.ItemSet", "AttributeError", "import manyhop_dgl.graphbolt as gb"),
    ("from dgl.graphbolt import ItemSet", "ImportError", "import manyhop_dgl.graphbolt as gb"),
    ("import dgl.graphbolt.impl", "ImportError", "import manyhop_dgl.graphbolt as gb, and take names from that"),
    (
        "dgl.graphbolt.CooperativeConvFunction",
        "AttributeError",
        "manyhop_graphbolt has no 'CooperativeConv",
    ),
    ("from dgl.graphbolt import Nonsense", "ImportError", "manyhop_graphbolt has no 'Nonsense'"),
    ("dgl.graphbolt.FusedCSCSamplingGraph()", "TypeError", "manyhop_dgl.graphbolt.fused_csc_sampling_graph"),
]


@needs_dgl
def test_what_is_unavailable_raises():
    out = run(f"""
        import manyhop_dgl
        import dgl
        g = dgl.graph(([0, 1], [1, 2]))
        for statement, _, _ in {REFUSED!r} * 2:  # the second time, too
            try:
                exec(statement)
            except Exception as error:
                print(type(error).__name__, error)
            else:
                print("no error")
        assert not hasattr(dgl.graphbolt, "__wrapped__")  # what tools look for in every module
    """)
    for (statement, error, message), line in zip(REFUSED * 2, out.splitlines(), strict=True):
        assert line.startswith(error), statement
        assert message in line, statement


@needs_dgl
def test_a_name_that_is_missing_after_install_too():
    out = run("""
        import manyhop_dgl
        manyhop_dgl.install()
        import dgl
        print(dgl.graphbolt.ItemSet)
        try:
            dgl.graphbolt.CooperativeConvFunction
        except AttributeError as error:
            print(error)
    """)
    kind, message = out.splitlines()
    assert kind == "<class 'manyhop_graphbolt.items.sampler.ItemSet'>"
    assert "manyhop_graphbolt has no 'CooperativeConvFunction'" in message
    assert "import manyhop_dgl.graphbolt as gb" not in message


@needs_dgl
def test_an_import_that_failed_before_is_no_obstacle():
    out = run("""
        import sys
        try:
            import dgl
        except Exception as error:
            print(type(error).__name__)
        else:
            raise SystemExit("DGL imports by itself")
        assert any(name.startswith("dgl.") for name in sys.modules)
        import manyhop_dgl
        import dgl, dgl.nn, torch
        layer = dgl.nn.SAGEConv(2, 3, "mean")
        g = dgl.graph(([0, 1], [1, 2]))
        print(layer(g, torch.ones(3, 2)).shape, dgl.ops.copy_u_sum(g, torch.ones(3, 2)).sum())
    """)
    assert out.splitlines()[1:] == ["torch.Size([3, 3]) tensor(4.)"]


@needs_dgl
def test_processes_that_are_spawned_can_unpickle_graphs(tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import sys
        from multiprocessing import get_context

        def count(g):
            assert "manyhop_dgl" in sys.modules
            raise SystemExit(10 + g.num_edges())

        if __name__ == "__main__":
            import manyhop_dgl
            import dgl
            for method in ("spawn", "forkserver"):
                process = get_context(method).Process(target=count, args=(dgl.graph(([0, 1], [1, 2])),))
                process.start()
                process.join()
                print(process.exitcode)
        """)
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["12", "12"], done.stderr


def make_package(folder, *, library, graphbolt):
    package = folder / "dgl"
    for name in ("graphbolt", "sparse", "dgl_sparse"):
        (package / name).mkdir(parents=True)
    (package / "__init__.py").write_text("from . import graphbolt\n")
    (package / "sparse" / "__init__.py").write_text("x = 1\n")
    (package / "graphbolt" / "part.py").write_text("y = 2\n")
    (package / "graphbolt" / "__init__.py").write_text(graphbolt)
    (package / "graphbolt" / f"libgraphbolt_pytorch_{library}.so").touch()
    (package / "dgl_sparse" / f"libdgl_sparse_pytorch_{library}.so").touch()


def test_where_dgl_works_nothing_is_touched(tmp_path):
    make_package(tmp_path, library=VERSION, graphbolt="from .part import y\nclass ItemSet: pass\n")
    out = run(
        """
        import sys
        sys.path.insert(0, ".")
        import manyhop_dgl
        import dgl, dgl.sparse
        print(dgl.graphbolt.ItemSet.__module__, dgl.graphbolt.y, dgl.sparse.x, manyhop_dgl.compat.unavailable())
        """,
        tmp_path,
    )
    assert out.strip() == "dgl.graphbolt 2 1 {}"


@pytest.mark.parametrize("raised", ["ImportError('undefined symbol')", "OSError('cannot open')"])
def test_a_library_that_is_there_but_fails(tmp_path, raised):
    make_package(tmp_path, library=VERSION, graphbolt=f"from .part import y\nx = 3\nraise {raised}\n")
    out = run(
        """
        import sys
        sys.path.insert(0, ".")
        import manyhop_dgl
        import dgl
        print(manyhop_dgl.compat.unavailable())
        print(hasattr(dgl.graphbolt, "x"), "dgl.graphbolt.part" in sys.modules)
        """,
        tmp_path,
    )
    assert raised.partition("(")[0] in out
    assert out.splitlines()[1] == "False False"


def test_without_dgl():
    out = run("""
        import sys
        sys.modules["dgl"] = None
        import manyhop_dgl
        from manyhop.errors import MissingExtraError
        print(manyhop_dgl.compat.unavailable())
        g = manyhop_dgl.Graph(([0, 1], [1, 2]))
        print(g.num_nodes())
        for ask in (g.to_dgl, lambda: manyhop_dgl.NeighborSampler):
            try:
                ask()
            except MissingExtraError as error:
                print(error)
    """)
    lines = out.splitlines()
    assert lines[:2] == [str({"dgl": f"DGL is not installed: {pip_install('dgl')}"}), "3"]
    assert len(lines) == 4
    assert all(pip_install("dgl") in line for line in lines[2:])
