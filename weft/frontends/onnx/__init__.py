"""ONNX models to graphs.

    graph = load("model.onnx")        a path, bytes, an onnx.ModelProto, or an open binary file

What goes in may be of any operator set from 6 to 28; what comes out holds operators of the newest one. A model that is
damaged, hostile or uses what Weft does not know raises a `FrontendError` that names the nodes, all of them at once.
"""

from weft.core.errors import FrontendError
from weft.frontends.onnx.importer import load

__all__ = ["FrontendError", "load"]
