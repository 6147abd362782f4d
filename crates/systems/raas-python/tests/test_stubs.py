"""The type stubs name what the native part has, and nothing else."""

import ast
import pathlib

import raas
from raas import _raas


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_the_stubs_are_those_of_the_native_part():
    tree = ast.parse((pathlib.Path(raas.__file__).parent / "_raas.pyi").read_text())
    told = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert set(told) == public(vars(_raas)) - {"RELEASE"}
    for name, node in told.items():
        if isinstance(node, ast.ClassDef):
            members = public(item.name for item in node.body if isinstance(item, ast.FunctionDef))
            assert members == public(vars(getattr(_raas, name))), name
    assert set(raas.__all__) == public(vars(raas)) - {"aio", "tensor"}
