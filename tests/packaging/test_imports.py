"""What an import brings along."""

import subprocess
import sys

CODE = """
import sys
sys.modules.update(dict.fromkeys({blocked!r}))  # importing one of these raises ImportError
import manyhop, manyhop.cli, manyhop.errors, manyhop.features, manyhop.graph, manyhop.loading, manyhop.pipeline
import manyhop.sampling
"""


def test_the_engine_imports_no_framework_and_no_compiler():
    blocked = ["torch_geometric", "dgl", "numba", "llvmlite", "triton", "matplotlib", "cugraph", "pylibwholegraph"]
    subprocess.run([sys.executable, "-c", CODE.format(blocked=blocked)], check=True)
