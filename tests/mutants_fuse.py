"""Bugs for mutants.py: producers in models and in inductor's graphs."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/quantization/fuse.py",
        "test_fuse test_fuse_safe",
        {
            "fused-under-somebodys-hook": (
                "if not (agree(readers) and unwatched(modules[name], *readers)):",
                "if not agree(readers):",
            ),
            "hooks-of-the-norm-alone": (
                "unwatched(modules[name], *readers)",
                "unwatched(modules[name])",
            ),
            "activations-that-others-read": ("elif name in alone and", "elif"),
            "no-floats-for-others": ("normed=name not in alone", "normed=False"),
            "fused-twice": (
                "for n, m in model.named_modules() if not isinstance(m, Fused)",
                "for n, m in model.named_modules()",
            ),
            "eps-of-the-dtype-alone": (
                "for dtype in (torch.float32, x.dtype)]",
                "for dtype in (x.dtype,)]",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/model.py",
        "test_fuse_safe::test_where_it_is_safe",
        {
            "fused-though-told-not-to": ("if fuse is False else fused", "if False else fused"),
            "never-fused-by-itself": ("if fuse is False else fused", "if not fuse else fused"),
        },
    ),
    *of(
        "scaled_mm/quantization/fused.py",
        "test_fuse_later",
        {
            "scales-apart-ignored": ("if site.apart or not alone", "if not alone"),
            "a-later-hook-gets-int8": ("return bool(self._forward_hooks)", "return False"),
            "scales-of-offloaded-weights": ('and "forward" not in reader.__dict__', ""),
            "several-arguments-taken-for-one": (
                "if site.apart or not alone or",
                "if site.apart or",
            ),
            "int8-for-a-hook-before-a-reader": ("and not reader._forward_pre_hooks", ""),
            "activation-exchanged-unseen": (
                "same = activation is site.activation",
                "same = True",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/feeds.py",
        "test_fuse test_fuse_safe",
        {"output-of-the-model-forgotten": ("trace.changed |= trace.origins(out)  #", "pass  #")},
    ),
    *of(
        "scaled_mm/quantization/feeds.py",
        "test_fuse_later",
        {
            "passed-on-is-made-anew": ("if output in self.origin:", "if False:"),
            "changed-in-place-unseen": ("if self._in_place(name, given[1]):", "if False:"),
        },
    ),
    *of(
        "scaled_mm/quantization/feeds.py",
        "test_fuse test_fuse_safe",
        {"set-items-unseen": (' or name == "__setitem__"', "")},
    ),
    *of(
        "scaled_mm/quantization/fuse.py",
        "test_fuse_later",
        {
            "hidden-states-of-int8": (
                "        fused.register_forward_hook(_tensors_out)\n",
                "        pass\n",
            ),
            "training-mode-lost": ("fused.get_submodule(name).training = True", "pass"),
            "everything-is-tried": (
                "leaves = {n: m for n, m in modules.items() if n not in norms and _bare(m)}",
                "leaves = {n: m for n, m in modules.items() if activation_of(m)}",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/fuse.py",
        "test_fuse_produced",
        {
            "activations-tried-around-zero": (
                "(torch.linspace(-6, 6, 601), *_FAR.split(1), *(-_FAR).split(1))",
                "(torch.linspace(-6, 6, 601),)",
            ),
            "norms-tried-around-zero": (
                "sizes = [x, x / 256, large[large.isfinite().all(-1)]]",
                "sizes = [x, x / 256]",
            ),
            "norms-tried-on-a-matrix": ("module(some[None])[0].double()", "module(some).double()"),
            "norms-that-take-no-rows-raise": (
                "    except Exception:  # it norms something else than rows\n",
                "    except KeyError:\n",
            ),
        },
    ),
    *of(
        "scaled_mm/nn/produced.py",
        "test_fuse_produced",
        {
            "plain-in-float32": ("self.unquantized().to(self.dtype)", "self.unquantized()"),
            "columns-taken-for-rows": (
                "if not _leaves_columns(index, self.ndim):",
                "if False:",
            ),
            "columns-behind-an-ellipsis-taken-for-rows": (
                "return whole or (parts[-1] is Ellipsis and taken < ndim)",
                "return taken < ndim",
            ),
            "a-mask-takes-one-dimension": ("        return part.ndim\n", "        return 1\n"),
            "heads-of-rows": (
                "return shape[:-1] if same else None",
                "return shape[:-1] if shape[-1] == -1 else None",
            ),
            "one-row-s-scale-for-all": (
                "if part is None or (given and part.numel() == 1):",
                "if part is None or part.numel() == 1:",
            ),
            "compared-as-an-object": ('"__eq__", "__ne__", ', ""),
        },
    ),
    *of(
        "scaled_mm/nn/produced.py",
        "test_fuse test_fuse_safe",
        {
            "torch-gets-what-is-produced": (
                "args, kwargs = tree_map(plain, (args, dict(kwargs or {})))",
                "args, kwargs = args, dict(kwargs or {})",
            ),
            "second-factor-forgotten": (
                'if "times" in self.inputs else y',
                "if False else y",
            ),
        },
    ),
    *of(
        "scaled_mm/integrations/inductor.py",
        "test_inductor",
        {
            "others-read-what-a-norm-was": ("reader.replace_input_with(y, floats)", "pass"),
            "an-activation-that-others-read": ('"eps" not in match.options or not', "not"),
            "one-scale-taken-for-one-a-token": (
                'return {"symmetric": given["symmetric"]} if given["per_token"] else None',
                'return {"symmetric": given["symmetric"]}',
            ),
            "static-quantisers-have-parts": (
                'if isinstance(node.meta["val"], Tensor):',
                "if False:",
            ),
            "sum-of-any-shapes": ("t.dtype == out.dtype and t.shape == out.shape", "True"),
            "sum-before-its-weight": (
                "if not all(_movable(n, total, late) for n in others):",
                "if False:",
            ),
            "quantisers-that-differ-shared": (
                "tuple(sorted(node.kwargs.items(), key=lambda x: x[0]))",
                "()",
            ),
            "scaled-sum": ("or node.kwargs or len(node.args) != 2", "or len(node.args) != 2"),
        },
    ),
    *of(
        "scaled_mm/integrations/patterns.py",
        "test_inductor",
        {
            "any-constant": (
                "return type(want) is type(got) and bool(want == got)",
                "return type(want) is type(got)",
            ),
            "any-dimension": (
                "yield [_last(d, 2) for d in a], [_last(d, rank) for d in b]",
                "pass",
            ),
            "two-inputs-for-one": (
                "return self.bound[want] is got",
                "return True",
            ),
            "read-in-between": (
                "if any(reader not in inner for n in inner - {y} for reader in n.users):",
                "if False:",
            ),
            "factors-that-are-broadcast": (
                "if not shape or any(_value(node).shape != wanted for node in others):",
                "if not shape:",
            ),
            "factors-in-one-order": (
                "if want.target in _SYMMETRIC and len(got.args) == 2:",
                "if False:",
            ),
        },
    ),
    *of(
        "csrc/cuda/common/produce_team.cuh",
        "test_cuda_produce::test_named test_cuda_produce::test_shapes_of_models",
        {
            "cuda-range-of-one-block": ("all *= gridDim.x;", ""),
            "cuda-range-before-it-is-there": (
                "      arrive();\n      wait();\n      all",
                "      all",
            ),
            "cuda-nan-is-lost": (
                'asm("max.NaN.f32 %0, %1, %2;"',
                'asm("max.f32 %0, %1, %2;"',
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/produce.cu",
        "test_cuda_produce::test_named test_cuda_produce::test_shapes_of_models",
        {
            "cuda-columns-that-are-not-there": (
                "return producer_.has(group) ? sum : 0.0f;",
                "return sum;",
            ),
            "cuda-table-forgets-a-second-factor": (
                "is_aligned(p) && !p.other.data &&",
                "is_aligned(p) &&",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/produce.cu",
        "test_cuda_produce::test_a_weight_and_a_bias_of_two_dtypes",
        {"cuda-weights-of-two-dtypes": ("|| is_mixed(p)", "")},
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/produce_table.cuh",
        "test_cuda_produce::test_rows_whose_values_are_looked_up "
        "test_cuda_produce::test_every_bfloat16_where_values_are_looked_up",
        {
            "cuda-table-without-signs": (
                "const uint32_t sign = i >= kTableSize ? 0x8000 : 0;",
                "const uint32_t sign = 0;",
            ),
            "cuda-small-values-looked-up": ("kTableBeyond = 0x7800", "kTableBeyond = 0x3800"),
            "cuda-odd-columns-never-beyond": (
                "if (beyond & kTableBeyond * 0x10001) {",
                "if (beyond & kTableBeyond) {",
            ),
            "cuda-negative-beside-a-large-one": (
                "table_[at + (bits >> 15) * kTableSize]",
                "table_[at]",
            ),
            "cuda-tabled-range-of-one-warp": (
                "    if (lane < blockDim.x / 32) mine = exchange[lane];\n",
                "",
            ),
        },
        gpu=True,
    ),
]
