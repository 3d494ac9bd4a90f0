"""A name with an underscore is used in the modules whose classes have it, or it is a library's."""

import ast

from import_graph import modules, parse

LIBRARIES = {
    "Accelerate": "_add_dataloader _remove_dataloader",
    "Python": "_asdict _current_frames _exit _make _replace",
    "torch": "_active_ddp_module _apply_fn _backward_hooks _backward_pre_hooks _C _comm_hooks _comm_ptr "
    "_convert_indices_from_coo_to_csr _cuda_getCurrentRawStream _cuda_getCurrentStream _cuda_getDevice "
    "_cuda_setDevice _cuda_setStream _embedding_bag_per_sample_weights_backward _foreach_copy_ "
    "_foreach_zero_ _forward_hooks _forward_pre_hooks _get_backend _indices _lazy_call "
    "_optimizer_step_post_hooks _optimizer_step_pre_hooks "
    "_parameters _post_accumulate_grad_hooks _schema _timeout _unsafe_view "
    "_untyped_storage _values _version",
    "numba": "_cache _compile_for_args _load_index",
    "PyG": "_aggregate_forward_hooks _aggregate_forward_pre_hooks _edge_store_dict _global_store _key _mapping "
    "_message_forward_hooks _message_forward_pre_hooks _node_store_dict _orig_edge_index _propagate_forward_hooks "
    "_propagate_forward_pre_hooks _store _to_canonical",
    "DGL": "_aggre_type _allow_zero_in_degree _CAPI_DGLHeteroCreateHeteroGraphWithNumNodes "
    "_CAPI_DGLHeteroCreateUnitGraphFromCSR _CAPI_SetSeed _columns _default_initializer _edge_frames _graph "
    "_in_src_feats _initializers _items _node_frames _out_feats",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def own_names(tree: ast.Module) -> set[str]:
    """Return the private names of the classes of a module: methods, annotations, what they use of ``self``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return set(filter(is_private, found))


def used(tree: ast.Module) -> dict[str, int]:
    """Return the private names that a module uses of objects other than ``self`` and ``cls``, each with a line."""
    return {
        node.attr: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and ast.unparse(node.value) not in ("self", "cls", "super()")
    }


def foreign(tree: ast.Module) -> dict[str, int]:
    """Return the private names that a module uses, but none of its classes has."""
    own = own_names(tree)
    return {name: line for name, line in used(tree).items() if name not in own}


def test_private_names_stay_in_their_module():
    names = {name for line in LIBRARIES.values() for name in line.split()}
    found = {(module, name, line) for module in modules() for name, line in foreign(parse(module)).items()}
    assert {place for place in found if place[1] not in names} == set()
    assert names == {name for _, name, _ in found}


def test_the_rule_sees_foreign_names():
    own = "class A:\n    _a: int\n    def _b(self): self._c = 1\n\ndef f(a): return a._a + a._b() + a._c\n"
    assert foreign(ast.parse(own)) == {}
    assert foreign(ast.parse("def f(a): return a._a + super()._b\n\nx.y._b = 1\n")) == {"_a": 1, "_b": 3}
