"""Bugs for mutants.py. Python: what is read of a checkpoint, and what is refused."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/checkpoint/config.py",
        ("test_guards_python::test_where_a_pattern_matches test_checkpoint test_checkpoint_files"),
        {
            "ignored-layer-quantised": (
                "if self.ignore.rank(name, classes) is not None:",
                "if False:",
            ),
            "last-group-wins": ("self.groups[min(found)[1]][1]", "self.groups[max(found)[1]][1]"),
            "weight-scale-per-tensor": (
                'per_channel=weights["strategy"] == "channel"',
                "per_channel=False",
            ),
            "dynamic-weights-accepted": ('if weights["dynamic"]:', "if False:"),
            "dynamic-taken-for-static": ('dynamic=inputs["dynamic"],', "dynamic=False,"),
            "four-bit-weights-taken-for-eight": (
                'choices: dict[str, tuple[Any, ...]] = {"num_bits": bits, "type": ("int",)}',
                'choices: dict[str, tuple[Any, ...]] = {"type": ("int",)}',
            ),
            "symmetric-by-default-forgotten": (
                'fields.get("symmetric", True)',
                'fields.get("symmetric", False)',
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/config.py",
        "test_checkpoint test_checkpoint_files",
        {
            "weights-with-zero-points": ('if not weights["symmetric"]:', "if False:"),
            "per-token-scheme-per-tensor": (
                'per_token=inputs["strategy"] == "token"',
                "per_token=False",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/config.py",
        "test_checkpoint_packed",
        {
            "packed-with-activations": (
                'if group.get("input_activations") is not None:',
                "if False:",
            ),
            "packed-order-forgotten": ('fields.get("actorder") == "group"', "False"),
            "packed-strategy-unread": (
                'if made["strategy"] != ("group" if grouped else "channel"):',
                "if False:",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/layers_packed.py",
        "test_weight_only_models::test_odd_sizes",
        {"packed-features-of-whole-words": ("return int(k)", "return layer.k")},
    ),
    *of(
        "scaled_mm/checkpoint/layers_packed.py",
        "test_checkpoint_packed",
        {
            "packed-shape-unread": (
                "if n != layer.n or -(-k * layer.scheme.bits // 32) != words:",
                "if False:",
            ),
            "packed-float-layer-taken": ("if scheme is None:", "if False:"),
            "packed-g_idx-unread": ('if "weight_g_idx" in self.parts:', "if False:"),
        },
    ),
    *of(
        "scaled_mm/checkpoint/config_awq_gptq.py",
        "test_checkpoint_int4",
        {
            "gptq-v2-read-as-v1": ('{"gptq": 1, "gptq_v2": 2}', '{"gptq": 1, "gptq_v2": 1}'),
            "zero-point-means-symmetric": (
                "return bool(sym) if zero_point is None else not zero_point",
                "return bool(sym) if zero_point is None else zero_point",
            ),
            "three-bits-accepted": (
                "if type(bits) is not int or bits not in _BITS[method]:",
                "if type(bits) is not int:",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/fields.py",
        "test_guards_python test_checkpoint_files test_untrusted",
        {
            "infinite-number-is-json": (
                "if not math.isfinite(value := float(digits)):",
                "if math.isnan(value := float(digits)):",
            ),
            "json-of-any-size": ("if len(text) > most:", "if False:"),
            "json-of-any-size-read": (
                "text = file.read(most + 1)",
                "text = file.read()\n        text = text[: most + 1]",
            ),
            "json-of-any-depth": ("for _ in range(MAX_DEPTH):", "while True:"),
            "members-without-number": (
                "> MAX_ITEMS:\n        raise",
                "> MAX_ITEMS**2:\n        raise",
            ),
            "half-a-surrogate-accepted": (
                (
                    "except UnicodeEncodeError:  # half of a surrogate "
                    "pair\n                    raise"
                ),
                "except LookupError:\n                    raise",
            ),
            "boolean-is-an-integer": (
                "if type(value) is not int or",
                "if not isinstance(value, int) or",
            ),
            "strings-of-anything": (
                "or not all(isinstance(each, str) for each in value):",
                "or not value and False:",
            ),
            "unknown-setting-accepted": ("if key not in known and value", "if not known and value"),
            "name-twice-accepted": ("if len(made) < len(pairs):", "if False:"),
            "nan-is-json": (", parse_constant=constant", ""),
        },
    ),
    *of(
        "scaled_mm/checkpoint/files.py",
        "test_guards_python test_checkpoint_files test_untrusted",
        {
            "unknown-field-accepted": (
                'if unknown := sorted(entry.keys() - {"dtype", "shape", "data_offsets"}):',
                'if unknown := sorted(entry.keys() & {"unknown"}):',
            ),
            "short-read-accepted": ("if raw.size != entry.nbytes:", "if False:"),
            "huge-size-beside-a-zero": (
                "prod(max(size, 1) for size in shape) > MAX_INTEGER",
                "prod(shape) > MAX_INTEGER",
            ),
            "data-begins-at-the-header": ("self.data = 8 + length", "self.data = length"),
            "empty-tensor-read": ("if not entry.nbytes:", "if False:"),
        },
    ),
    *of(
        "scaled_mm/checkpoint/files.py",
        "test_checkpoint_files",
        {
            "whitespace-before-the-header": ('if not self.header.startswith(b"{"):', "if False:"),
        },
    ),
    *of(
        "scaled_mm/checkpoint/folder.py",
        "test_checkpoint_files test_checkpoint",
        {
            "tensor-in-two-shards": ("if name in where:", "if False:"),
            "index-names-another-shard": (
                "if weight_map is not None and weight_map.get(name) != file.path.name:",
                "if False:",
            ),
            "index-names-what-is-not-there": ("if name not in where:", "if False:"),
        },
    ),
    *of(
        "scaled_mm/checkpoint/folder.py",
        "test_checkpoint_files",
        {
            "two-checkpoints-in-a-folder": ("if index.exists() and whole.exists():", "if False:"),
            "shard-of-another-format": ('if not shard.endswith(".safetensors"):', "if False:"),
        },
    ),
    *of(
        "scaled_mm/checkpoint/paths.py",
        "test_checkpoint_files test_untrusted",
        {
            "path-in-a-name-accepted": ("and not _PATH_LIKE.search(name) and", "and"),
            "pickle-by-its-name-opened": (
                "if path.suffix in PICKLES else None",
                "if False else None",
            ),
            "control-character-in-a-name": ("plain = name.isprintable() and", "plain ="),
            "name-of-any-length": (
                "if not 1 <= len(name) <= MAX_NAME or",
                "if not 1 <= len(name) or",
            ),
            "file-name-of-any-length": ("if len(name.encode()) > MAX_FILE_NAME:", "if False:"),
            "pickle-by-its-bytes-opened": (
                "if first.startswith(magic) and not safetensors:",
                "if False and not safetensors:",
            ),
            "pipe-opened": ("if not stat.S_ISREG(path.stat().st_mode):", "if False:"),
            "a-good-length-is-a-pickle": ("magic) and not safetensors:", "magic):"),
        },
    ),
    *of(
        "scaled_mm/checkpoint/targets.py",
        "test_guards_python test_checkpoint_files",
        {
            "class-before-name": (
                "if name in self._plain:\n            return 0",
                "if name in self._plain:\n            return 3",
            ),
            "pattern-anywhere-in-a-name": (
                "and self._pattern.match(name):",
                "and self._pattern.search(name):",
            ),
            "pattern-of-the-whole-name": (
                "and self._pattern.match(name):",
                "and self._pattern.fullmatch(name):",
            ),
            "first-pattern-only": ('"|".join(f"(?:{each})" for each in patterns)', "patterns[0]"),
            "choice-in-a-pattern-leaks": (
                'f"(?:{each})" for each in patterns',
                "each for each in patterns",
            ),
        },
    ),
]
