"""`scaled_mm.compat`: the peers' signatures; this library's bits; and the peers' own semantics,
written down here once more in plain torch, from what their sources say."""

import pytest
import torch
from helpers import assert_bits
from torch import Tensor

import scaled_mm
from scaled_mm import compat

OUT = (torch.bfloat16, torch.float16)
SHAPES = [(1, 16, 16), (5, 64, 32), (33, 256, 48), (7, 37, 19)]  # M, K, N


# --- the products ---------------------------------------------------------------------------------


def operands(m: int, k: int, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(m * k * n)
    return {
        "a": torch.randint(-128, 128, (m, k), generator=g, dtype=torch.int8),
        "b": torch.randint(-128, 128, (n, k), generator=g, dtype=torch.int8).t(),
        "scale_a": torch.rand(m, 1, generator=g) / 100 + 1e-4,
        "scale_b": torch.rand(n, 1, generator=g) / 100 + 1e-4,  # as vLLM keeps it
        "bias": torch.randn(n, generator=g).to(dtype),
        "azp": torch.randint(-128, 128, (m, 1), generator=g, dtype=torch.int32),
    }


def peer(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What the peers document, in float64: the result before its last rounding, and how far from it
    an output may lie: half an ulp of out_dtype, and what float32 arithmetic may add."""
    t = a.double() @ b.double()
    if azp_adj is not None:
        t = t - (azp_adj.double() if azp is None else azp.double() * azp_adj.double())
    product = scale_a.double() * scale_b.double().view(1, -1) * t
    exact = product if bias is None else product + bias.double()
    size = product.abs() + (0 if bias is None else bias.double().abs())
    info = torch.finfo(out_dtype)
    half_ulp = torch.maximum(exact.abs() * info.eps / 2, torch.tensor(info.smallest_normal))
    return exact, half_ulp * (1 + 2**-10) + 4 * 2**-24 * size


def assert_near(got: Tensor, expected: tuple[Tensor, Tensor]) -> None:
    exact, bound = expected
    assert got.shape == exact.shape
    assert bool(((got.double() - exact).abs() <= bound).all())


def evt(t: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype) -> Tensor:
    """The peers' Hopper epilogue without bias, operation for operation."""
    return (scale_a * (scale_b.view(1, -1) * t.float())).to(out_dtype)


@pytest.mark.parametrize("out_dtype", OUT)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_vllm(shape: tuple[int, int, int], out_dtype: torch.dtype) -> None:
    given = operands(*shape, out_dtype)
    a, b, sa, sb, bias, azp = given.values()
    acc = (a.double() @ b.double()).long()
    adj = b.long().sum(0).int()
    plain = compat.cutlass_scaled_mm(a, b, sa, sb, out_dtype)
    assert_bits(plain, scaled_mm.scaled_mm(a, b, sa, sb.view(1, -1), out_dtype=out_dtype))
    assert_bits(plain, evt(acc, sa, sb, out_dtype))
    assert_near(plain, peer(a, b, sa, sb, out_dtype))
    biased = compat.cutlass_scaled_mm(a, b, sa, sb, out_dtype, bias)
    assert_near(biased, peer(a, b, sa, sb, out_dtype, bias))

    token = compat.cutlass_scaled_mm_azp(a, b, sa, sb, out_dtype, adj, azp)
    assert_bits(token, evt(acc - azp.long() * adj, sa, sb, out_dtype))
    token = compat.cutlass_scaled_mm_azp(a, b, sa, sb, out_dtype, adj, azp, bias)
    assert_near(token, peer(a, b, sa, sb, out_dtype, bias, adj, azp))
    own = scaled_mm.scaled_mm(
        a, b, sa, sb.view(1, -1), bias=bias, azp=azp, azp_adj=adj, out_dtype=out_dtype
    )
    assert_bits(token, own)
    with_azp = adj * -31  # the zero point of a static scheme, multiplied in
    tensor = compat.cutlass_scaled_mm_azp(
        a, b, sa[0], sb, out_dtype, azp_adj=with_azp.view(1, -1), bias=bias
    )
    assert_near(tensor, peer(a, b, sa[0], sb, out_dtype, bias, with_azp))


@pytest.mark.parametrize("out_dtype", OUT)
@pytest.mark.parametrize("shape", SHAPES)
def test_product_of_sgl(shape: tuple[int, int, int], out_dtype: torch.dtype) -> None:
    a, b, sa, sb, bias, _ = operands(*shape, out_dtype).values()
    got = compat.int8_scaled_mm(a, b, sa.flatten(), sb.flatten(), out_dtype, bias)
    assert_near(got, peer(a, b, sa, sb, out_dtype, bias))
    assert_bits(got, compat.cutlass_scaled_mm(a, b, sa, sb, out_dtype, bias))
    got = compat.int8_scaled_mm(mat_a=a, mat_b=b, scales_a=sa, scales_b=sb, out_dtype=out_dtype)
    assert_near(got, peer(a, b, sa, sb, out_dtype))


def test_zero_points_have_the_peers_sign() -> None:
    """x = scale (q - azp): quantise by the one function, multiply by the other, and x W is back."""
    torch.manual_seed(0)
    x, w = torch.randn(16, 64) + 3, torch.randn(32, 64)
    w_q, w_scale = scaled_mm.quantize_weight_int8(w)
    q, scale, azp = compat.scaled_int8_quant(x, symmetric=False)
    assert azp is not None and bool((azp < -50).all())
    adj = w_q.sum(1, dtype=torch.int32)
    y = compat.cutlass_scaled_mm_azp(q, w_q.t(), scale, w_scale, torch.float16, adj, azp)
    torch.testing.assert_close(y.float(), x @ w.t(), atol=1.0, rtol=0.02)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (2, 1, 5), (0,), (2, 0)], ids=str)
def test_leading_dimensions(lead: tuple[int, ...]) -> None:
    """The peers flatten a; a scale has an element for each token, in whatever shape."""
    tokens = torch.Size(lead).numel()
    a, b, sa, sb, bias, azp = operands(tokens, 32, 16, torch.bfloat16).values()
    adj = scaled_mm.azp_adj(b)
    flat = compat.cutlass_scaled_mm_azp(a, b, sa, sb, torch.bfloat16, adj, azp, bias)
    got = compat.cutlass_scaled_mm_azp(
        a.view(*lead, 32), b, sa.flatten(), sb, torch.bfloat16, adj.flatten(), azp.flatten(), bias
    )
    assert_bits(got, flat.view(*lead, 16))
    got = compat.cutlass_scaled_mm(a.view(*lead, 32), b, sa, sb, torch.bfloat16, bias)
    assert got.shape == (*lead, 16)


def test_beyond_the_peers() -> None:
    a, b, sa, sb, _, azp = operands(5, 20, 9, torch.float32).values()
    packed = scaled_mm.pack_weight_int8(b)
    given = (sa, sb, torch.float32, torch.ones(9))
    assert_bits(
        compat.cutlass_scaled_mm(a, packed, *given),
        compat.cutlass_scaled_mm(a, b.contiguous(), *given),
    )
    adj = scaled_mm.azp_adj(packed)
    assert_bits(
        compat.cutlass_scaled_mm_azp(a, packed, sa, sb, torch.float32, adj, azp[:1]),
        compat.cutlass_scaled_mm_azp(a, b, sa, sb, torch.float32, adj * azp[0]),
    )


# --- the quantiser --------------------------------------------------------------------------------


def activations(dtype: torch.dtype) -> Tensor:
    g = torch.Generator().manual_seed(1)
    return (torch.randn(9, 130, generator=g) + torch.arange(-4, 5).view(9, 1) / 4).to(dtype)


def levels_apart(q: Tensor, peers: Tensor) -> Tensor:
    return (q.int() - peers.int()).abs()


@pytest.mark.parametrize("dtype", [torch.float32, *OUT])
def test_dynamic_quantiser_of_vllm(dtype: torch.dtype) -> None:
    x = activations(dtype)
    wide = x.float()
    q, scale, azp = compat.scaled_int8_quant(x)
    absmax = wide.abs().amax(1, keepdim=True)
    assert_bits(scale, absmax / 127)
    assert azp is None
    apart = levels_apart(q, (wide * (127 / absmax)).round().clamp(-128, 127))
    assert int(apart.max()) <= 1 and float((apart > 0).float().mean()) < 0.02

    q, scale, azp = compat.scaled_int8_quant(x, symmetric=False)
    low, high = wide.amin(1, keepdim=True), wide.amax(1, keepdim=True)
    assert bool((low < 0).all() and (high > 0).all())
    assert_bits(scale, (high - low) / 255)
    assert_bits(azp, (-128 - low / scale).round().int())
    apart = levels_apart(q, ((wide * (1 / scale)).round() + azp).clamp(-128, 127))
    assert int(apart.max()) <= 1 and float((apart > 0).float().mean()) < 0.02
    own = scaled_mm.quantize_int8(x, symmetric=False)
    for got, expected in zip((q, scale, azp), own, strict=True):
        assert_bits(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, *OUT])
def test_static_quantiser_of_vllm(dtype: torch.dtype) -> None:
    x = activations(dtype)
    scale = torch.tensor([0.021])
    q, same, azp = compat.scaled_int8_quant(x, scale)
    assert same is scale and azp is None
    peers = (x.float() / scale).round().clamp(-128, 127)
    assert bool((peers == -128).any())
    assert_bits(q, peers.clamp(min=-127).to(torch.int8))

    zero = torch.tensor([-40], dtype=torch.int32)
    q, same, azp = compat.scaled_int8_quant(x, scale, zero, symmetric=False)
    assert same is scale and azp is zero
    apart = levels_apart(q, ((x.float() * (1 / scale)).round() + zero).clamp(-128, 127))
    assert int(apart.max()) <= 1 and float((apart > 0).float().mean()) < 0.02


@pytest.mark.parametrize("symmetric", [True, False])
def test_scales_of_more_dimensions_are_a_column(symmetric: bool) -> None:
    x = torch.randn(2, 3, 4, 16)
    q, scale, azp = compat.scaled_int8_quant(x, symmetric=symmetric)
    assert q.shape == x.shape and scale.shape == (24, 1)
    assert azp is None if symmetric else azp.shape == (24, 1) and azp.dtype == torch.int32
    row = compat.scaled_int8_quant(x[0, 0, 0], symmetric=symmetric)
    assert row[0].shape == (16,) and row[1].shape == (1, 1)


def test_where_the_quantisers_part() -> None:
    """What the docstring says of the peer, and what holds here."""
    row = torch.linspace(1000, 1001, 16).view(1, -1)
    scale = (row.max() - row.min()) / 255
    assert int((-128 - row.min() / scale).round()) == -255128
    _, _, azp = compat.scaled_int8_quant(row, symmetric=False)
    assert azp is not None and azp.item() == -128
    q, scale, _ = compat.scaled_int8_quant(torch.zeros(1, 16))
    assert not q.any() and scale.item() > 0
    q, scale, _ = compat.scaled_int8_quant(torch.full((1, 16), torch.inf))
    assert not q.any() and scale.isnan().all()
    with pytest.raises(ValueError, match="scale must be given with azp"):
        compat.scaled_int8_quant(row, azp=torch.ones(1, dtype=torch.int32), symmetric=False)
    with pytest.raises(ValueError, match="symmetric must be False when azp is given"):
        compat.scaled_int8_quant(row, scale, torch.ones(1, dtype=torch.int32))


# --- int4 -----------------------------------------------------------------------------------------


def words(k: int, n: int, group: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """qweight, scales, qzeros of random bits."""
    g = torch.Generator().manual_seed(k + n)

    def bits(rows: int) -> Tensor:
        return torch.randint(-(2**31), 2**31, (rows, n // 8), generator=g).int()

    scales = (torch.rand(k // group, n, generator=g) / 50 - 0.005).to(dtype)
    return bits(k), scales, bits(k // group)


def peer_weight(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """vLLM's dequantiser: nibble 4 (j % 2) + j // 2 of a word is column j of its eight; the
    difference is exact, the product rounded once."""
    shifts = torch.tensor([4 * (4 * (j % 2) + j // 2) for j in range(8)])

    def values(packed: Tensor) -> Tensor:
        return ((packed.unsqueeze(-1).long() >> shifts) & 15).flatten(1)

    group = torch.arange(len(qweight)) // (len(qweight) // len(scales))
    return (values(qweight) - values(qzeros)[group]).to(scales.dtype) * scales[group]


@pytest.mark.parametrize("dtype", OUT)
@pytest.mark.parametrize(("k", "n", "group"), [(128, 64, 128), (256, 24, 64), (64, 8, 32)])
def test_int4_of_vllm(k: int, n: int, group: int, dtype: torch.dtype) -> None:
    qweight, scales, qzeros = words(k, n, group, dtype)
    w = compat.awq_dequantize(qweight, scales, qzeros, 0, 0, 0)
    assert_bits(w, peer_weight(qweight, scales, qzeros))
    assert_bits(w, scaled_mm.awq_dequantize(qweight, scales, qzeros))
    x = torch.randn(7, k, generator=torch.Generator().manual_seed(2)).to(dtype)
    y = compat.awq_gemm(x, qweight, scales, qzeros, 8)
    assert_bits(y, scaled_mm.awq_gemm(x, qweight, scales, qzeros))
    exact, size = x.double() @ w.double(), x.double().abs() @ w.double().abs()
    info = torch.finfo(dtype)
    half_ulp = torch.maximum(exact.abs() * info.eps / 2, torch.tensor(info.smallest_normal))
    assert bool(((y.double() - exact).abs() <= half_ulp + k * 2**-23 * size).all())
    keywords = {"input": x, "qweight": qweight, "scales": scales, "qzeros": qzeros}
    assert_bits(compat.awq_gemm(**keywords, split_k_iters=1), y)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    qweight, scales, qzeros = words(64, 32, 32, torch.bfloat16)

    def everything(x: Tensor, b: Tensor, sb: Tensor, bias: Tensor, adj: Tensor) -> list[Tensor]:
        q, sa, _ = compat.scaled_int8_quant(x)
        q2, sa2, azp = compat.scaled_int8_quant(x, symmetric=False)
        return [
            compat.cutlass_scaled_mm(q, b, sa, sb, torch.bfloat16, bias),
            compat.int8_scaled_mm(q, b, sa, sb, torch.float16),
            compat.cutlass_scaled_mm_azp(q2, b, sa2, sb, torch.bfloat16, adj, azp, bias),
            compat.cutlass_scaled_mm_azp(q2, b, sa2, sb, torch.bfloat16, adj),
            compat.awq_gemm(x, qweight, scales, qzeros, 8),
            compat.awq_dequantize(qweight, scales, qzeros, 0, 0, 0),
        ]

    compiled = torch.compile(everything, fullgraph=True, dynamic=dynamic)
    _, b, _, sb, bias, _ = operands(1, 64, 32, torch.bfloat16).values()
    for rows in (3, 6) if dynamic else (3,):
        x = torch.randn(2, rows, 64, generator=torch.Generator().manual_seed(rows)).bfloat16()
        given = (x, b, sb, bias, scaled_mm.azp_adj(b))
        for got, expected in zip(compiled(*given), everything(*given), strict=True):
            assert_bits(got, expected)


def test_refusals() -> None:
    a, b, sa, sb, bias, azp = operands(4, 32, 16, torch.bfloat16).values()
    with pytest.raises(ValueError, match="scale_a must have 1 or M=4 elements"):
        compat.cutlass_scaled_mm(a, b, sa[:3], sb, torch.bfloat16)
    with pytest.raises(ValueError, match="bias must"):
        compat.int8_scaled_mm(a, b, sa, sb, torch.bfloat16, bias.half())
    with pytest.raises(ValueError, match="azp must"):
        compat.cutlass_scaled_mm_azp(a, b, sa, sb, torch.bfloat16, scaled_mm.azp_adj(b), azp[:2])
    with pytest.raises(ValueError, match="a must be int8"):
        compat.cutlass_scaled_mm(a.to(torch.float8_e4m3fn), b, sa, sb, torch.bfloat16)
    with pytest.raises(TypeError, match="scale_b must be a Tensor, got float"):
        compat.int8_scaled_mm(a, b, sa, 0.5, torch.bfloat16)
    with pytest.raises(ValueError, match="scale_a must not require grad"):
        compat.cutlass_scaled_mm(a, b, sa.requires_grad_(), sb, torch.bfloat16)


@pytest.mark.parametrize("name", ["a", "scale_a", "scale_b", "azp_adj", "azp"])
def test_what_is_no_tensor_is_named(name: str) -> None:
    ones = torch.ones(8, dtype=torch.int32)
    good = {"a": torch.ones(3, 16, dtype=torch.int8), "b": torch.ones(8, 16, dtype=torch.int8).t()}
    good |= {"scale_a": torch.ones(3, 1), "scale_b": torch.ones(8)}
    good |= {"out_dtype": torch.bfloat16, "azp_adj": ones, "azp": ones[:3]}
    compat.cutlass_scaled_mm_azp(**good)
    with pytest.raises(TypeError, match=f"^{name} must be a Tensor, got list"):
        compat.cutlass_scaled_mm_azp(**{**good, name: [1.0]})
