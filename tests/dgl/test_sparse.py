"""``dgl.sparse`` without its C++ library: every operator equals its meaning on dense matrices, and so do gradients."""

import pytest
import torch

pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
import manyhop_dgl  # noqa: F401, I001  # before dgl.sparse
import dgl
import dgl.sparse as dglsp

from manyhop.errors import InputError

SHAPE = 6, 5


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


def matrix(kind, device, *, channels=None, shape=SHAPE, density=0.5, seed=0):
    """A sparse matrix without duplicates, with an empty row and column; its values are leaves."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(shape, generator=generator) < density
    places[1], places[:, 2] = False, False
    row, col = places.nonzero().t()
    order = torch.randperm(len(row), generator=generator)
    value = torch.rand(len(row), *([] if channels is None else [channels]), generator=generator) + 0.5
    value = value.to(device).requires_grad_()
    if kind == "coo":
        return dglsp.from_coo(row[order].to(device), col[order].to(device), value, shape)
    if kind == "csr":
        return dglsp.from_csr(
            torch.searchsorted(row, torch.arange(shape[0] + 1)).to(device), col.to(device), value, shape
        )
    row, col = row[col.argsort(stable=True)], col.sort().values
    return dglsp.from_csc(torch.searchsorted(col, torch.arange(shape[1] + 1)).to(device), row.to(device), value, shape)


def dense(mat, value=None):
    value = mat.val if value is None else value
    out = value.new_zeros(*mat.shape, *value.shape[1:])
    return out.index_put((mat.row.long(), mat.col.long()), value, accumulate=True)


def check(found, expected, *leaves):
    """Assert that results are equal, and the gradients of leaves."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weight = torch.linspace(-1, 1, found.numel(), device=found.device).view_as(found)
    for a, b in zip(
        *(torch.autograd.grad((out * weight).sum(), leaves, retain_graph=True) for out in (found, expected)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


KINDS = pytest.mark.parametrize("kind", ["coo", "csr", "csc"])


@KINDS
@pytest.mark.parametrize("channels", [None, 3])
def test_products_with_dense_matrices(kind, channels, device):
    a = matrix(kind, device, channels=channels)
    tail = [] if channels is None else [channels]
    x = torch.rand(5, 4, *tail, device=device).requires_grad_()
    check(dglsp.matmul(a, x), torch.einsum("nm...,mk...->nk...", dense(a), x), a.val, x)
    left, right = torch.rand(6, 4, *tail, device=device), torch.rand(4, 5, *tail, device=device)
    left, right = left.requires_grad_(), right.requires_grad_()
    product = dglsp.bsddmm(a, left, right) if channels else dglsp.sddmm(a, left, right)
    expected = torch.einsum("nk...,km...->nm...", left, right)[a.row, a.col] * a.val
    check(product.val, expected, a.val, left, right)
    if channels is None:
        vector = torch.rand(5, device=device).requires_grad_()
        check(a @ vector, dense(a) @ vector, a.val, vector)


@KINDS
def test_products_of_sparse_matrices(kind, device):
    a, b = matrix(kind, device), matrix("coo", device, shape=(5, 7), seed=1)
    check(dense(a @ b), dense(a) @ dense(b), a.val, b.val)
    d = dglsp.diag(torch.rand(5, device=device).requires_grad_(), (5, 5))
    check(dense(a @ d), dense(a) @ dense(d), a.val, d.val)
    check(dense(d @ b), dense(d) @ dense(b), d.val, b.val)
    wide = dglsp.diag(torch.rand(3, device=device).requires_grad_(), (5, 3))
    assert (d @ wide).is_diag()
    check(dense(d @ wide), dense(d) @ dense(wide), d.val, wide.val)
    doubled = dglsp.from_coo(torch.tensor([0, 0]), torch.tensor([1, 1]), torch.ones(2), (5, 5))
    assert doubled.has_duplicate()
    assert doubled.coalesce().val.tolist() == [2.0]
    with pytest.raises(InputError, match="coalesce"):
        doubled @ doubled


@KINDS
def test_element_by_element(kind, device):
    a, b = matrix(kind, device), matrix("csc", device, seed=1)
    check(dense(a + b), dense(a) + dense(b), a.val, b.val)
    check(dense(a - b), dense(a) - dense(b), a.val, b.val)
    check(dense(a * b), dense(a) * dense(b), a.val, b.val)
    other = matrix("csc" if kind != "csc" else "coo", device)
    quotient = dense(other)[a.row, a.col]
    check((a / other).val, a.val / quotient, a.val, other.val)
    with pytest.raises(InputError, match="at equal positions"):
        a / b
    with pytest.raises(InputError, match=r"shapes fit, got a sparse matrix of \(6, 5\)"):
        a + matrix("coo", device, shape=(5, 6))
    check((a * 3).val, a.val * 3, a.val)
    check((-a).val, -a.val, a.val)
    check(dglsp.sp_mul_v(a, torch.arange(5.0, device=device)).val, a.val * a.col, a.val)
    d = dglsp.diag(torch.tensor([2.0, 4.0], device=device))
    assert d.inv().val.tolist() == [0.5, 0.25]


@KINDS
@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_reductions(kind, channels, dim, device):
    a = matrix(kind, device, channels=channels)
    present = torch.zeros(SHAPE, dtype=torch.bool, device=device).index_put(
        (a.row, a.col), torch.tensor(True).to(device)
    )
    whole = dense(a) if channels else dense(a).unsqueeze(2)
    mask = present.unsqueeze(2)
    over = (0, 1) if dim is None else dim
    count = mask.sum(over).clamp(min=1)
    some = mask.any(dim) if dim is not None else mask.any()
    expected = {
        "sum": whole.sum(over),
        "smean": whole.sum(over) / count,
        "smax": torch.where(some, whole.masked_fill(~mask, -9).amax(over), 0),
        "smin": torch.where(some, whole.masked_fill(~mask, 9).amin(over), 0),
        "sprod": torch.where(some, whole.masked_fill(~mask, 1).flatten(0, 1).prod(0), 0)
        if dim is None
        else torch.where(some, whole.masked_fill(~mask, 1).prod(dim), 0),
    }
    for name, value in expected.items():
        value = value if channels else value.squeeze(-1)
        check(getattr(a, name)(dim), value, a.val)
        check(a.reduce(rtype=name, dim=dim), value, a.val)
    if dim is not None:
        shares = whole.masked_fill(~mask, -torch.inf).softmax(dim)[a.row, a.col]
        check(dglsp.softmax(a, dim).val, shares if channels else shares.squeeze(-1), a.val)


@KINDS
def test_parts(kind, device):
    a = matrix(kind, device)
    whole = dense(a)
    for dim in (0, 1):
        index = torch.tensor([4, 0, 3, 0], device=device)
        check(dense(a.index_select(dim, index)), whole.index_select(dim, index), a.val)
        check(dense(a.range_select(dim, slice(1, 4))), whole[1:4] if dim == 0 else whole[:, 1:4], a.val)
        leading = torch.tensor([3, 1], device=device)
        small, kept = a.compact(dim, leading)
        assert kept.tolist() == [3, 1, *[i for i in range(SHAPE[dim]) if i not in (3, 1, (1, 2)[dim])]]
        check(dense(small), whole.index_select(dim, kept), a.val)
    check(dense(a.T), whole.t(), a.val)
    for (indptr, indices, ids), mat in ((a.csr(), whole), (a.csc(), whole.t())):
        rows = torch.repeat_interleave(torch.arange(len(mat), device=device), indptr.diff())
        torch.testing.assert_close(mat[rows, indices], a.val if ids is None else a.val[ids])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("replace", [False, True])
def test_samples(dim, replace, device):
    places = torch.ones(4, 5).nonzero().t()
    value = (places[1] if dim == 0 else places[0]).float().to(device)  # 0 at the first place of each
    mat = dglsp.spmatrix(places.to(device), value, (4, 5))
    ids = torch.tensor([2, 0], device=device)
    counts = torch.zeros(5 - dim)
    for _ in range(300):
        part = mat.sample(dim, 2, ids, replace=replace, bias=True)
        assert part.shape == ((2, 5), (4, 2))[dim]
        per_row = torch.bincount((part.row, part.col)[dim].cpu(), minlength=2)
        assert per_row.tolist() == [2, 2]
        assert replace or not part.has_duplicate()
        chosen = (part.col, part.row)[dim]
        assert torch.equal(part.val, chosen.float())
        counts += torch.bincount(chosen.cpu(), minlength=5 - dim)
    assert counts[0] == 0  # never drawn
    assert counts[1:].diff().min() > 0
    if replace:
        torch.testing.assert_close(
            counts / counts.sum(), torch.arange(5.0 - dim) / sum(range(5 - dim)), atol=0.05, rtol=0
        )
    everything = mat.sample(dim, 9, ids, replace=False)
    assert everything.nnz == 2 * (5, 4)[dim]


def test_adjacency_of_a_graph(device):
    g = dgl.graph((torch.tensor([0, 1, 1]), torch.tensor([1, 2, 0])), num_nodes=4).to(device)
    weight = torch.tensor([2.0, 3.0, 4.0], device=device)
    a = dglsp.val_like(g.adj(), weight)
    x = torch.rand(4, 2, device=device)
    assert a.shape == (4, 4)
    torch.testing.assert_close(a.T @ x, dgl.ops.u_mul_e_sum(g, x, weight.unsqueeze(1)))
    assert repr(g.adj()).startswith("SparseMatrix(indices=")
