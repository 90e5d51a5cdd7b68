"""Bugs for mutants.py. Python: layers of a checkpoint, loaded and written."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/checkpoint/layer.py",
        "test_checkpoint test_checkpoint_int4",
        {
            "surplus-tensor-of-a-layer": (
                "for part in sorted(self.parts - rules.keys()):",
                "for part in ():",
            ),
            "missing-tensor-of-a-layer": ("if present:\n", "if False:\n"),
            "tensor-of-another-scheme": ("if present is False:", "if False:"),
            "dtype-of-a-tensor-unchecked": ("if entry.dtype not in dtypes:", "if False:"),
            "shape-of-a-tensor-unchecked": (
                "if shapes is not None and entry.shape not in shapes:",
                "if False:",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/layers.py",
        "test_checkpoint test_precompute",
        {
            "stored-term-believed": (
                "and not torch.equal(self.read(checkpoint, name).view(1, -1), term):",
                "and False:",
            ),
            "zero-point-out-of-range": (
                "-128 <= round(value) <= 127",
                "-999 <= round(value) <= 999",
            ),
            "zero-points-of-a-symmetric-scheme": (
                "and bool(self.read(checkpoint, part).ne(0).any()):",
                "and False:",
            ),
            "infinite-scale-loaded": (
                "if x is not None and not bool(((x >= 0) & x.isfinite()).all()):",
                "if False:",
            ),
            "scale-without-its-weight": (
                ('elif part == "weight_scale" and _dtype(checkpoint, f"{name}.weight") != "I8":'),
                "elif False:",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/layers.py",
        "test_guards_python test_checkpoint test_precompute",
        {
            "infinite-scale-is-finite": (
                "bool(((x >= 0) & x.isfinite()).all())",
                "bool((x >= 0).all())",
            ),
            "negative-scale-loaded": (
                "bool(((x >= 0) & x.isfinite()).all())",
                "bool(x.isfinite().all())",
            ),
            "zero-point-truncated": ("stored.round().to(torch.int32)", "stored.to(torch.int32)"),
            "scale-of-the-first-channel": (
                "scale.expand(self.n, 1).contiguous()",
                "scale[:1].expand(self.n, 1).contiguous()",
            ),
            "term-without-its-zero-point": (
                "return azp_adj(b) if zero_point is None else azp_with_adj(b, zero_point)",
                "return azp_adj(b)",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/layers_awq_gptq.py",
        "test_checkpoint_int4",
        {
            "asymmetric-zeros-of-a-symmetric-scheme": (
                "if self.scheme.symmetric and bool((qzeros != word).any()):",
                "if False:",
            ),
            "infinite-int4-scale-loaded": ("if not bool(scales.isfinite().all()):", "if False:"),
            "gptq-shape-read-as-awq": (
                "(values * rows, columns) if gptq else (rows, values * columns)",
                "(values * rows, values * columns) if gptq else (rows, values * columns)",
            ),
            "spare-bias-dropped": ("if bool(bias.ne(0).any()):", "if False:"),
            "one-group-of-g-rows": (
                "self.k if self.scheme.group_size == -1 else",
                "1 if self.scheme.group_size == -1 else",
            ),
            "order-of-an-act-order-refused": (
                "if made.act_order and self.scheme.act_order is False:",
                "if made.act_order:",
            ),
            "scattered-rows-accepted": (
                "if made.act_order and self.scheme.act_order is False:",
                "if False:",
            ),
            "sevens-of-version-two": (
                "middle - (self.scheme.version == 1)",
                "middle - (self.scheme.version == 2)",
            ),
            "eight-bits-of-a-symmetric-scheme-unsigned": (
                "GroupedWeight(signed(q, bits), scales, None)",
                "GroupedWeight(signed(q ^ 128, bits), scales, None)",
            ),
            "act-order-of-eight-bits-lost": (
                "bits=bits, g_idx=g_idx, bias=bias)",
                "bits=bits, bias=bias)",
            ),
            "bias-narrowed": ("bias if bias.dtype == dtype else bias.float()", "bias.to(dtype)"),
        },
    ),
    *of(
        "scaled_mm/checkpoint/loading.py",
        "test_checkpoint test_checkpoint_int4",
        {
            "subclass-of-linear-replaced": (
                "if type(linear) is not nn.Linear or not name:",
                "if not isinstance(linear, nn.Linear) or not name:",
            ),
            "float-tensor-into-integers": (
                (
                    "if not any(entry.dtype in kind and target.dtype in kind.values() for kind "
                    "in _KINDS):"
                ),
                "if False:",
            ),
            "shape-of-a-float-tensor-unchecked": (
                "if entry.shape != tuple(target.shape):",
                "if False:",
            ),
            "surplus-tensor-of-the-checkpoint": (
                '_refuse(checkpoint, f"has {name}, which the model has not")',
                "continue",
            ),
            "missing-tensor-of-the-model": ("if id(target) not in filled:", "if False:"),
            "encoder-layer-stays-fused": ("unfuse(model)\n        owners", "owners"),
            "shape-of-a-layer-unchecked": (
                "if (linear.out_features, linear.in_features) != (layer.n, layer.k):",
                "if False:",
            ),
            "second-place-forgotten": (
                "for place, module in model.named_modules(remove_duplicate=False)",
                "for place, module in model.named_modules()",
            ),
            "training-forgotten": ("return made.train(linear.training)", "return made"),
        },
    ),
    *of(
        "scaled_mm/checkpoint/output.py",
        "test_outputs test_precompute",
        {
            "two-runs-at-once": ("fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
            "output-of-another-checkpoint": ("if found != manifest:", "if False:"),
            "folder-of-somebody": (
                'if {path.name for path in out.iterdir()} - {f".{MANIFEST}{PARTIAL}"}:',
                "if False:",
            ),
            "output-into-the-source": ("if out.resolve() == source.resolve():", "if False:"),
            "link-out-of-the-folder-copied": (
                "if not target.is_relative_to(inside) and target.parent != blobs:",
                "if False:",
            ),
            "link-into-the-blobs-refused": (
                "if not target.is_relative_to(inside) and target.parent != blobs:",
                "if not target.is_relative_to(inside):",
            ),
            "mode-of-a-copy-wider": (
                "new_file(out, mode_of(path)) as made",
                "new_file(out) as made",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/precompute.py",
        "test_precompute test_outputs",
        {
            "threads-not-put-back": (
                "finally:\n        torch.set_num_threads(before)",
                "finally:\n        pass",
            ),
            "shard-of-somebody-overwritten": (
                'if path.exists() and not is_marked(path, MARK, "1"):',
                "if False:",
            ),
            "float-checkpoint-copied": ("if source.quantization is None:", "if False:"),
            "index-without-the-terms": (
                "weight_map |= {name: draft.name for draft in drafts for name in draft.terms}",
                "pass",
            ),
            "config-before-the-shards-is-marked": (
                "{**source.config, CONFIG_MARK: 1}",
                "source.config",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/writing.py",
        "test_guards_python test_precompute test_outputs",
        {
            "terms-before-eight-byte-tensors": (
                "self._first = kept[-1] + 1 if kept else 0",
                "self._first = 0",
            ),
            "offsets-not-moved": (
                "yield entry, self._shift if i >= self._first else 0",
                "yield entry, 0",
            ),
            "header-not-padded": ('text += b" " * (-len(text) % 8)', 'text += b""'),
            "short-read-copied": (
                "if _read_into(file, piece) != len(piece):",
                "if _read_into(file, piece) < 0:",
            ),
            "damaged-shard-kept": (
                "same = np.array_equal(np.fromfile(file, np.uint8, len(piece)), piece)",
                "same = len(np.fromfile(file, np.uint8, len(piece))) == len(piece)",
            ),
            "header-of-a-shard-not-compared": (
                "same = file.read(len(self.header)) == self.header",
                "same = bool(file.read(len(self.header)))",
            ),
            "term-of-the-last-piece": (
                "term[:, first : first + len(weight)] =",
                "term[:, : len(weight)] =",
            ),
            "not-synced": (
                "file.flush()\n            os.fsync(descriptor)",
                "file.flush()",
            ),
            "partial-left-behind": ("temporary.unlink(missing_ok=True)\n        raise", "raise"),
            "mark-forgotten": ('{**self._file.metadata, MARK: "1"}', "{**self._file.metadata}"),
            "metadata-dropped": ('{**self._file.metadata, MARK: "1"}', '{MARK: "1"}'),
        },
    ),
]
