"""A token of llama.cpp, for `benchmarks.decoding`: a decoder of llama_110m's shape, with random weights of its own.

    pip install gguf llama-cpp-python==0.3.36      compiles llama.cpp for this machine, some minutes, so no extra has it

In: the kind of weights, a capacity and threads. Out: a `LlamaCpp`, which is called as every other candidate is. The
model is written as GGUF in float32 and made narrow by llama.cpp itself; its types of few bits have a float16 scale for
32 weights, where llama_110m's have a float32 one, so it reads 6 (int8) and 10 (int4) percent less.

Settings are those that were best on two cores of Emerald Rapids, with Q4_0 unless said, in turns, as parts of their
tokens a second: `flash_attn` 0.6 (and 1.0 with a cache of 8 bits); weights as they stand in the file
(`use_extra_bufts` off) 0.3, in the layout for AVX2 (CPU_REPACK) 0.4; Q4_1 0.9, Q4_K 0.5, IQ4_XS and IQ4_NL 0.4; F16
0.95 of BF16; one thread 0.4 to 0.8; OpenMP's threads asleep between loops (OMP_WAIT_POLICY=passive) 0.5. No difference
beyond noise: a cache in float32 or bfloat16, a copy of the file instead of its mapping, `n_ubatch`, a table of
embeddings besides the head, OpenMP's threads spinning for longer, pinned ones, and large pages for malloc.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from weft.graph.ir import Array

LAYERS, WIDTH, HEADS, HIDDEN, WORDS = 12, 768, 12, 2048, 32000
TYPES = {"float32": "ALL_F32", "bfloat16": "MOSTLY_BF16", "int8": "MOSTLY_Q8_0", "int4": "MOSTLY_Q4_0"}
"""llama.cpp's names of what weights are stored as."""


class LlamaCpp:
    """The decoder in llama.cpp: tokens, and the place of the last one, to logits. `bytes` is what its weights take."""

    def __init__(self, weights: str, capacity: int, threads: int) -> None:
        import llama_cpp

        if weights not in TYPES:
            raise ValueError(f"GGUF has no {weights}")
        self.library: Any = llama_cpp
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # `verbose` comes too late for `stored`
        with tempfile.TemporaryDirectory() as folder:
            # One place at a time, also of a prompt, which is not measured: several go to AMX's tiles, which is an
            # illegal instruction where the compiler drops their configuration (ggml-org/llama.cpp#26954).
            self.model: Any = llama_cpp.Llama(
                str(stored(Path(folder), weights)), n_threads=threads, n_threads_batch=threads, n_ctx=capacity,
                n_ubatch=1, flash_attn=False, logits_all=False, verbose=False,
            )  # fmt: skip
        self.bytes = int(llama_cpp.llama_model_size(self.model.model))
        self.memory = llama_cpp.llama_get_memory(self.model.ctx)
        self.batch = llama_cpp.llama_batch_init(capacity, 0, 1)

    def __call__(self, tokens: Array, places: Array) -> Array:
        """Logits of the word after the last one; what the cache held at these places and after them is forgotten."""
        count, context, batch = tokens.shape[1], self.model.ctx, self.batch
        start = int(places[0]) + 1 - count
        self.library.llama_memory_seq_rm(self.memory, 0, start, -1)
        batch.n_tokens = count
        for at in range(count):
            batch.token[at], batch.pos[at], batch.logits[at] = int(tokens[0, at]), start + at, at == count - 1
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
        if failed := self.library.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode gives {failed} for {count} tokens at place {start}")
        return np.ctypeslib.as_array(self.library.llama_get_logits(context), (1, WORDS))


def stored(folder: Path, weights: str) -> Path:
    """A file with the model."""
    import llama_cpp

    wide, narrow = folder / "float32.gguf", folder / "model.gguf"
    write(wide)
    if weights == "float32":
        return wide
    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype, wanted.pure = getattr(llama_cpp, f"LLAMA_FTYPE_{TYPES[weights]}"), True
    if failed := llama_cpp.llama_model_quantize(bytes(wide), bytes(narrow), wanted):
        raise RuntimeError(f"llama_model_quantize gives {failed} for {TYPES[weights]}")
    return narrow


def write(path: Path) -> None:
    """The model in float32. Words have numbers, and no texts; the head is the table of embeddings."""
    import gguf

    file, random = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)

    def matrix(name: str, outputs: int, inputs: int, scale: float) -> None:
        file.add_tensor(f"{name}.weight", random.standard_normal((outputs, inputs), np.float32) * np.float32(scale))

    def norm(name: str) -> None:
        file.add_tensor(f"{name}.weight", random.uniform(0.5, 1.5, WIDTH).astype(np.float32))

    file.add_tokenizer_model("no_vocab")
    file.add_vocab_size(WORDS)
    file.add_context_length(4096)
    file.add_block_count(LAYERS)
    file.add_embedding_length(WIDTH)
    file.add_feed_forward_length(HIDDEN)
    file.add_head_count(HEADS)
    file.add_head_count_kv(HEADS)
    file.add_rope_dimension_count(WIDTH // HEADS)
    file.add_rope_freq_base(10000.0)
    file.add_layer_norm_rms_eps(1e-5)
    matrix("token_embd", WORDS, WIDTH, 1.0)
    norm("output_norm")
    for layer in range(LAYERS):
        norm(f"blk.{layer}.attn_norm")
        norm(f"blk.{layer}.ffn_norm")
        for part in ("q", "k", "v", "output"):
            matrix(f"blk.{layer}.attn_{part}", WIDTH, WIDTH, WIDTH**-0.5)
        matrix(f"blk.{layer}.ffn_gate", HIDDEN, WIDTH, WIDTH**-0.5)
        matrix(f"blk.{layer}.ffn_up", HIDDEN, WIDTH, WIDTH**-0.5)
        matrix(f"blk.{layer}.ffn_down", WIDTH, HIDDEN, HIDDEN**-0.5)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
