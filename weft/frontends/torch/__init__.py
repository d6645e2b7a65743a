"""PyTorch: modules, exported programs and .pt2 files to graphs; a backend of torch.compile.

source       what the user gave, exported and decomposed
importer     an FX graph to a Graph, node by node
table        the converters by the names of ATen operators; they stand in elementwise, reductions, movement, indexing,
             layers, sequence
calls        arguments and results of any structure
"""

from weft.frontends.torch.source import load

__all__ = ["load"]
