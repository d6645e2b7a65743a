"""Layer 10: everything that can be seen of a compiled model, as one page that needs nothing but a browser.

    weft explore resnet50 -o page.html            from the command line
    explore(module).write("page.html")            from Python, with a module that weft.compile gave

stages     the stages of a kernel as text
graphs     the graph before and after each pass, and why; the model's own nodes, and where each went
kernels    one kernel: expression, steps with loops before and after each, plan and rivals, code, tuner's records
memory     the arena over time, read off the calls that the driver makes
page       the data, compressed, in page.html with page.css and base.js (elements), views.js, page.js (addresses, keys)

Whatever a page needs is collected once from what compiling left behind; nothing is planned or compiled again but the
assembly. All words of a model's file are data on the page, never markup.
"""

from __future__ import annotations

from weft.explore.page import Page, explore

__all__ = ["Page", "explore"]
