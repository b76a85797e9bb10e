"""Turn the formulas of the documentation into MathML when the site is built.

Browsers draw MathML themselves, so the pages need no script and no network.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace each formula of a page (called by mkdocs)."""
    content = INLINE.sub(lambda match: convert(html.unescape(match[1])), content)
    return BLOCK.sub(lambda match: convert(html.unescape(match[1]), display="block"), content)
