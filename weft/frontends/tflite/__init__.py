"""TFLite (LiteRT): flatbuffers to graphs, those of full-integer quantized models included.

flatbuffer   tables, vectors and texts of a flatbuffer
schema       what a model's tables mean: tensors, operators, subgraphs
importer     a model to a Graph, operator by operator; variables become inputs and outputs
table        the converters by the names of operators; they stand in layers, arithmetic, movement

A quantized operator is written as DequantizeLinear, the operator, QuantizeLinear; the passes make integer products of
that (`graph/passes/quantized.py`). What only moves elements stays in whole numbers.
"""

from weft.frontends.tflite.importer import load

__all__ = ["load"]
