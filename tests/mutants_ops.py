"""Bugs for mutants.py. Python: the public functions of the ops, and loading the libraries."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/_library.py",
        "test_environment",
        {
            "missing-library-not-said": ("if not CPU_LIBRARY.exists():", "if False:"),
        },
    ),
    *of(
        "scaled_mm/ops/arguments.py",
        "test_torch test_refusals test_weight",
        {
            "gradients-refused-always": ("if torch.is_grad_enabled():", "if True:"),
            "gradients-never-refused": ("if torch.is_grad_enabled():", "if False:"),
            "gradient-of-an-option": (
                "(operands, options) if options else (operands,)",
                "(operands,)",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/eager.py",
        "test_memory::test_the_short_way_asks_once test_memory::test_a_layer_asks_once",
        {
            "short-way-asks-for-memory-twice": (
                "raise explained(error, {}) from None\n    except NotImplementedError:",
                "return None\n    except NotImplementedError:",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/int8.py",
        "test_plain",
        {
            "short-way-gives-float32": (
                "activation is None and out_dtype is torch.bfloat16:",
                "activation is None:",
            ),
            "short-way-of-a-layer-that-has-more": (
                "(not given or given.keys() == _BIAS)",
                "True",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/eager.py",
        "test_plain",
        {
            "short-way-in-graphs": ("if is_compiling():", "if False:"),
            "short-way-without-bias": (
                "scale_b, bias, k, n, settled)",
                "scale_b, None, k, n, settled)",
            ),
            "short-way-never-early": (
                "b.data, b.k, b.n, b.settled",
                "b.data, b.k, b.n, False",
            ),
            "short-way-of-the-transposed-shape": (
                "b.data, b.k, b.n, b.settled",
                "b.data, b.n, b.k, b.settled",
            ),
            "short-way-with-gradients": (
                "not isinstance(bias, Tensor) or bias.requires_grad",
                "not isinstance(bias, Tensor)",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/arguments.py",
        "test_arguments",
        {
            "tangents-of-no-op": ("    return level >= 0", "    return False"),
            "tangents-of-operands-alone": (
                "_refuse_tangents(operands | options)",
                "_refuse_tangents(operands)",
            ),
            "tangents-past-the-short-way": ("and forward_ad._current_level < 0", "and True"),
            "tensors-of-any-kind-packed": (
                "accept(given)\n    for name, t in given.items():",
                "accept(given)\n    for name, t in ():",
            ),
            "any-value-is-a-bool": ("if not isinstance(value, bool):", "if False:"),
        },
    ),
    *of(
        "scaled_mm/ops/mixed_weight.py",
        "test_arguments",
        {
            "groups-of-no-rows": ("if k == 0:  # no rows", "if False:  # no rows"),
            "truth-values-are-groups": (
                "g_idx.dtype not in _INTEGERS",
                "g_idx.is_floating_point()",
            ),
            "scales-negated-later": ("scales = scales.resolve_neg()", "pass"),
            "values-of-meta-asked": ("if values.is_meta:", "if False:"),
        },
    ),
    *of(
        "scaled_mm/lowbit/words.py",
        "test_arguments",
        {
            "more-words-than-values": (
                "words.shape[-1] != -(-length",
                "words.shape[-1] < -(-length",
            ),
        },
    ),
    *of(
        "scaled_mm/lowbit/stored.py",
        "test_arguments",
        {"fewer-rows-than-none": ("or k < 0:", "or False:")},
    ),
    *of(
        "scaled_mm/nn/weight_only_linear.py",
        "test_arguments",
        {"integers-multiplied-as-halves": ("if not x.is_floating_point():", "if False:")},
    ),
    *of(
        "scaled_mm/ops/arguments.py",
        "test_plain",
        {
            "gradient-of-a-scale": ("c.requires_grad or d.requires_grad", "c.requires_grad"),
        },
    ),
    *of(
        "scaled_mm/ops/arguments.py",
        "test_memory",
        {
            "out-of-memory-is-python-s": (
                "torch.OutOfMemoryError(str(error))",
                "MemoryError(str(error))",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/arguments.py",
        "test_out",
        {
            "write-hidden-from-autograd": ("torch.autograd.graph.increment_version(out)", "pass"),
        },
    ),
    *of(
        "scaled_mm/ops/arguments.py",
        "test_fakes",
        {
            "kind-of-tensor-not-said": (
                "isinstance(operand, Tensor) and (kind :=",
                "(kind := '') and (",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/azp.py",
        "test_torch test_weight",
        {
            "packed-shape-not-passed": ("_azp_adj(weight, **packed)", "_azp_adj(weight)"),
        },
    ),
    *of(
        "scaled_mm/ops/azp.py",
        "test_memory",
        {
            "no-memory-for-sums": (
                "return _azp_adj(weight, **packed)\n    except (MemoryError, ",
                "return _azp_adj(weight, **packed)\n    except (OSError, ",
            ),
            "no-memory-for-sums-times-azp": (
                "return _azp_with_adj(weight, azp, **packed)\n    except (MemoryError, ",
                "return _azp_with_adj(weight, azp, **packed)\n    except (OSError, ",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/int8.py",
        "test_epilogues::test_interleave_gate_up",
        {
            "interleaved-halves": (
                "torch.stack((gate.movedim(-1, 0), up.movedim(-1, 0)), 1)",
                "torch.stack((gate.movedim(-1, 0), up.movedim(-1, 0)), 0)",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/int8.py",
        "test_torch test_refusals test_weight",
        {
            "fake-product-dtype": ("out_dtype or torch.bfloat16", "torch.bfloat16"),
            "fake-of-pairs-is-whole": ("n = n // 2", "n = n"),
            "fake-of-any-activation": ("if activation in GATED:", "if residual is None:"),
            "out-scale-not-passed": ('options["out_scale"] = out_scale', "pass"),
            "out-azp-not-passed": ('options["out_azp"] = out_azp', "pass"),
            "fake-packed-size": ("((k + 3) // 4 + 1) * 64", "((k + 3) // 4) * 64"),
            "bias-not-passed": ('options["bias"] = bias', "pass"),
            "residual-not-passed": ('options["residual"] = residual', "pass"),
            "activation-not-passed": ('options["activation"] = activation', "pass"),
            "activation-of-any-type": ("if not isinstance(activation, str):", "if False:"),
        },
    ),
    *of(
        "scaled_mm/ops/int8.py",
        "test_memory",
        {
            "no-memory-for-a-product": (
                "**options, **packed)\n        return written(out)\n    except (MemoryError, ",
                "**options, **packed)\n        return written(out)\n    except (OSError, ",
            ),
            "no-memory-for-int32": (
                (
                    "_int8_mm_out(a, weight, out=out, **packed)\n        return "
                    "written(out)\n    except (MemoryError, "
                ),
                (
                    "_int8_mm_out(a, weight, out=out, **packed)\n        return "
                    "written(out)\n    except (OSError, "
                ),
            ),
            "no-memory-for-a-packed-weight": (
                "b.shape[0], b.shape[1])\n    except (MemoryError, ",
                "b.shape[0], b.shape[1])\n    except (OSError, ",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/lowbit.py",
        "test_memory",
        {
            "no-memory-for-a-dequantised-weight": (
                "return _awq_dequantize(qweight, scales, qzeros)\n    except (MemoryError, ",
                "return _awq_dequantize(qweight, scales, qzeros)\n    except (OSError, ",
            ),
            "no-memory-for-an-int4-product": (
                "**options)\n        return written(out)\n    except (MemoryError, ",
                "**options)\n        return written(out)\n    except (OSError, ",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/packed_weight.py",
        "test_weight",
        {
            "copies-stay-settled": (
                'return {"data": self.data, "k": self.k, "n": self.n}',
                "return vars(self)",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/packed_weight.py",
        "test_torch test_refusals test_weight",
        {
            "packed-weight-transposed": ("return (self.k, self.n)", "return (self.n, self.k)"),
        },
    ),
    *of(
        "scaled_mm/ops/packed_weight.py",
        "test_one_weight_forms test_one_weight",
        {
            "unpacked-with-the-flip": ("_FLIP = -128", "_FLIP = 0"),
            "skew-unpacked": ("[:, :groups].transpose", "[:, 1:].transpose"),
            "packed-size-not-checked": ("data.dtype != torch.uint8 or", "False and"),
        },
    ),
    *of(
        "scaled_mm/ops/quantize.py",
        "test_torch test_refusals test_quantize",
        {
            "azp-with-symmetric": ("if azp is not None and symmetric:", "if False:"),
            "static-azp-forgotten": (
                "quantize_int8_static(x, scale, azp), scale",
                "quantize_int8_static(x, scale), scale",
            ),
            "fake-scale-per-tensor": ("if per_token else [1]", "if per_token else [1, 1]"),
            "fake-weight-scale": (
                "w.new_empty([1, n], dtype=torch.float32)",
                "w.new_empty([n, 1], dtype=torch.float32)",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/quantize.py",
        "test_memory",
        {
            "no-memory-for-a-quantised-weight": (
                "per_channel=per_channel)\n    except (MemoryError, ",
                "per_channel=per_channel)\n    except (OSError, ",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/shapes.py",
        "test_fakes test_torch",
        {
            "fake-product-is-a-matrix": ("return [*a.shape[:-1], n]", "return [*a.shape[:1], n]"),
            "fake-product-of-any-k": ("a.shape[-1] == k,", "True,"),
            "fake-of-any-device": ("t.device != like.device", "False"),
            "fake-weight-of-any-rank": ("b.dim() == 2,", "True,"),
            "fake-groups-of-any-number": ("(k % torch.sym_max(groups, 1) == 0)", "True"),
            "fake-of-no-groups": ("((groups > 0) | (k == 0))", "True"),
            "fake-zeros-of-any-shape": ("            got == wanted,", "            True,"),
            "fake-out-of-any-shape": ("same &= got == wanted", "same &= True"),
        },
    ),
]
