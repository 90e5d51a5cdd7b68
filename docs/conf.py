"""Sphinx: `make docs` builds the site from these pages and the docstrings, into build/docs.

What is done here beside the settings: formulas in docstrings become literal blocks, $...$ becomes
MathML (no script, nothing fetched), a mention of a page or an object becomes a link to it, schemas
and help texts are taken from the library. Warnings: a public name that no page documents, a page
that is in the navigation twice.
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from importlib.metadata import version as installed

import torch
from docutils import nodes
from docutils.parsers.rst import Directive
from latex2mathml.converter import convert
from pygments.lexers.special import TextLexer
from sphinx.util import logging
from sphinx.util.nodes import make_refnode
from typer.testing import CliRunner

from scaled_mm_cli.main import COMMANDS, app

project = "scaled_mm"
author = copyright = "the scaled_mm authors"
version = release = installed("scaled-mm")

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = []
default_role = "py:obj"  # `name` in a docstring: a link where the name is documented

autodoc_member_order = "bysource"
autodoc_mock_imports = ["transformers", "peft", "vllm"]  # what scaled_mm.integrations extends
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False  # "a, b: ..." stays one entry

html_theme = "furo"
html_title = f"scaled_mm {version}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_math_renderer = "mathml"

# --- docstrings -----------------------------------------------------------------------------------

SECTION = re.compile("(Args|Attributes|Raises|Returns|Warns|Yields):")
ITEM = re.compile(r"[*-] |\d+\. ")
ATTRIBUTES = {}


def formulas(app, what, name, obj, options, lines):
    """Indented lines outside the sections are literal: formulas, tables, code. Lines that begin
    with a bar are a table. Elsewhere |x|, *.x and a plural behind `name` mean nothing to reST."""
    made, literal, spared, rows = [], False, False, []
    for line in [*lines, ""]:
        if line.startswith("| ") or (rows and line.startswith("|")):
            rows.append(line)
            continue
        if rows:
            made += table(rows)
            rows = []
        if line and not line.startswith(" "):
            if literal and made[-1]:
                made.append("")
            literal = False
            spared = bool(SECTION.fullmatch(line) or ITEM.match(line))
        elif line.strip() and not literal and not spared and made:
            made += ["", "::", ""]
            literal = True
        made.append(line if literal else plain(line))
    lines[:] = made
    if what in ("attribute", "data", "property"):
        ATTRIBUTES[name] = made


def attribute(app, what, name, obj, options, lines):
    """Of an attribute's text napoleon makes a type where it has a colon: as it was before."""
    lines[:] = ATTRIBUTES.pop(name, lines)


def plain(line):
    parts = re.split(r"(`[^`]*`)", line)  # text, code, text ...
    code = re.compile(r"`[A-Za-z_][\w.]*`")
    parts[1::2] = [x if code.fullmatch(x) else f"`{x}`" for x in parts[1::2]]
    parts[::2] = [re.sub(r"\|(?=\S)|(?<=\S)\||\*(?=[.\"])", r"\\\g<0>", x) for x in parts[::2]]
    return re.sub(r"`\0(?=\w)", r"`\\ ", "\0".join(parts)).replace("\0", "")


def table(rows):
    """A Markdown table as reST's list-table."""
    cells = [[plain(x.strip()) for x in row.strip("| ").split(" | ")] for row in rows]
    made = ["", ".. list-table::", "   :header-rows: 1", ""]
    for row in [cells[0], *cells[2:]]:
        made += [f"{'     -' if i else '   * -'} {x}" for i, x in enumerate(row)]
    return [*made, ""]


# --- mathematics ----------------------------------------------------------------------------------


BAR = "&#x0007C;"
# A minus or plus that begins an expression, or follows a bracket, a comma or another sign.
SIGN = re.compile(
    r"(<mrow>|<mtd>|<mo[^>]*>(?:&#x00028;|&#x0005B;|&#x0002C;|&#x0003D;|&#x02264;)</mo>"
    r"(?:<mtext>&#x000A0;</mtext>)?)<mo>(&#x02212;|&#x0002B;)</mo>"
)


def mathml(tex, display):
    """MathML, with what latex2mathml leaves to the browser and browsers do not guess: bars and
    signs stand close to what they belong to."""
    tex = re.sub(r"\\text\{[^}]*\}", lambda found: found[0].replace(r"\_", "_"), tex)
    made = convert(tex, display="block" if display else "inline")
    made = made.replace(f">{BAR}</mo>", f' lspace="0" rspace="0">{BAR}</mo>')
    return SIGN.sub(r'\1<mo form="prefix">\2</mo>', made)


def inline_math(writer, node):
    writer.body.append(mathml(node.astext(), False))
    raise nodes.SkipNode


def block_math(writer, node):
    # Wider than a small window, it scrolls.
    style = "overflow: auto hidden; padding-block: 0.4em"
    writer.body.append(f'<div class="math" style="{style}">{mathml(node.astext(), True)}</div>')
    raise nodes.SkipNode


# --- links ----------------------------------------------------------------------------------------


def page_links(app, doctree, docname):
    """A page's name in code, docs/numerics.md, leads to that page."""
    for literal in list(doctree.findall(nodes.literal)):
        found = re.fullmatch(r"docs/([\w/-]+)\.md", literal.astext())
        inside = isinstance(literal.parent, nodes.reference)
        if found and found[1] in app.env.all_docs and not inside:
            uri = app.builder.get_relative_uri(docname, found[1])
            link = nodes.reference("", "", internal=True, refuri=uri)
            literal.replace_self(link)
            link += literal


def references(app, env, node, contnode):
    """`name` in a docstring, without its module: the one function, class or module that ends so."""
    if node.get("refdomain") != "py" or node.get("reftype") != "obj":
        return None
    known = env.get_domain("py").objects
    ends = "." + node["reftarget"].lstrip(".")
    kinds = ("function", "class", "exception", "module", "data", "method", "property")
    own = [name for name, x in known.items() if name.endswith(ends) and x.objtype in kinds]
    if "." not in ends[1:]:  # a member's bare name could be anyone's
        own = [name for name in own if known[name].objtype not in ("method", "property")]
    if len({known[name].node_id for name in own}) != 1:
        return None
    found = known[own[0]]
    return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, contnode)


# --- taken from the library -----------------------------------------------------------------------


class Schemas(Directive):
    """The schema of every op."""

    def run(self):
        schemas = map(str, torch._C._jit_get_all_schemas())
        text = "\n".join(sorted(x for x in schemas if x.startswith("scaled_mm::")))
        return [nodes.literal_block(text, text, language="text")]


class Help(Directive):
    """What `scaled-mm COMMAND --help` prints."""

    required_arguments = 1

    def run(self):
        name = self.arguments[0]
        assert name in COMMANDS, name
        env = {"COLUMNS": "92", "TERM": "dumb", "NO_COLOR": "1"}
        done = CliRunner(env=env).invoke(app, [name, "--help"], prog_name="scaled-mm")
        assert done.exit_code == 0, done.output
        text = "\n".join(line.rstrip() for line in done.output.strip().splitlines())
        return [nodes.literal_block(text, text, language="text")]


# --- completeness ---------------------------------------------------------------------------------

PUBLIC = (
    "",
    ".awq",
    ".checkpoint",
    ".compat",
    ".explain",
    ".layouts",
    ".nn",
    ".parallel",
    ".precompute",
    ".reference",
    ".validate",
)


def public_objects():
    """Full name -> object, of everything that these modules offer."""
    for part in PUBLIC:
        module = importlib.import_module("scaled_mm" + part)
        own = {
            name
            for name, x in vars(module).items()
            if not name.startswith("_") and getattr(x, "__module__", "") == module.__name__
        }
        for name in getattr(module, "__all__", None) or own:
            found = getattr(module, name)
            if not inspect.ismodule(found):
                yield f"{module.__name__}.{name}", found


def once(app, env):
    """A page that stands twice in the navigation is as much a fault as one that is not there."""
    entries = Counter(page for pages in env.toctree_includes.values() for page in pages)
    for page, count in entries.items():
        if count > 1:
            logging.getLogger(__name__).warning("%s is in the navigation %d times", page, count)


def complete(app, env):
    documented = set()
    for name in env.get_domain("py").objects:
        owner, _, attribute = name.rpartition(".")
        try:
            documented.add(id(getattr(importlib.import_module(owner), attribute)))
        except (ImportError, AttributeError, ValueError):
            continue  # a member of a class
    for name, found in public_objects():
        if id(found) not in documented:
            logging.getLogger(__name__).warning("%s is public and on no page", name)


def setup(app):
    app.add_lexer("mermaid", TextLexer)  # a drawing on GitHub, its text here
    app.connect("autodoc-process-docstring", formulas, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", attribute, priority=600)  # and after it
    app.connect("doctree-resolved", page_links)
    app.connect("missing-reference", references)
    app.connect("env-check-consistency", once)
    app.connect("env-check-consistency", complete)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.add_directive("schemas", Schemas)
    app.add_directive("help", Help)
