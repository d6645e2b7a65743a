"""Small members of the families of models that people bring, at random weights: is Weft's answer PyTorch's?

    python -m benchmarks.architectures                              every model: right, refused by name, or wrong
    python -m benchmarks.architectures --only resnet bert           those whose names hold one of these words
    python -m benchmarks.architectures --json found.jsonl           a line for each model; those already there are kept
    python -m benchmarks.architectures --jobs 15 --threads 1        fifteen at a time
    python -m benchmarks.architectures --speed --threads 2          how fast, beside torch.compile (inductor)
    python -m benchmarks.architectures --speed --jobs 6 --pin --seed 1 --minutes 8 --json found.jsonl
                                                                    a fair sample: in a random order, each of the six
                                                                    on cores of its own, for eight minutes
    python -m benchmarks.architectures --join found.jsonl           the table of what such files hold
    python -m benchmarks.architectures --few --door torch.compile   25 of them through torch.compile(backend="weft")
    python -m benchmarks.architectures --only weft/                 the built-in models, as PyTorch's modules
    python -m benchmarks.architectures --only keras-                keras.applications, of its backends jax and torch

The smallest member of every family of timm, and small configurations of architectures of transformers: encoders,
decoders, both, vision, speech. A model is right when no output differs from PyTorch's own by more than 1e-4 of its
greatest element. Each has so many seconds of a process that runs nothing beside it and that the next begins anew where
this one ended it, so that none can take the others down. Weights are those that the model draws; what it draws as a
constant (biases of 0, scales of 1 or 1e-6) is disturbed, since a bias of 0 is right wherever it is added. Deep networks
of Keras with random weights may grow any difference: where one ulp in the image moves Keras' own answer by more than
a tenth of what is allowed, weights are made smaller (the network is unsteady, and not right, if that does not help).
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import logging
import math
import os
import queue
import random
import shutil
import statistics
import sys
import tempfile
import time
import types
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import interleave, print_system, print_table, speed_ratio
from benchmarks.served import Served, answer

TOLERANCE = 1e-4
STEADY = 0.7
"""What is left of the weights of a network that is not steady: gates of large numbers are steps."""
MOST_SERVED = 30
"""So many models share a process, one after the other: importing and warming up takes longer than most of them."""
SIDES = (64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512)
"""Sides of images: a model gets the first that it takes."""

BUILT_IN = "resnet18 resnet50 mobilenet_v1 mobilenet_v2 lstm_lm dqn dcgan bert_base"
"""Models of `weft.models` (but for the decoder) as modules of PyTorch, for `--few` and by name."""

TIMM = """
    vgg11 resnet10t legacy_seresnet18 resnetv2_18 starnet_s050 resnest14d fasternet_t0 mixer_s16_224
    convnext_zepto_rms ese_vovnet19b_slim_dw dla46x_c mambaout_femto selecsls42 pvt_v2_b0 cpubone_nano
    inception_next_atto edgenext_xx_small cs3darknet_focus_s skresnet18 beit_base_patch16_224 legacy_xception
    tinynet_e hiera_tiny_224 swiftformer_xs convit_tiny visformer_tiny jx_nest_tiny sam2_hiera_tiny mvitv2_tiny
    mobilenetv3_small_050 efficientformer_l1 swin_tiny_patch4_window7_224 efficientvim_m1 qwen3_vit_88m
    vit_tiny_patch16_dinov3_qkvb nf_regnet_b0 res2next50 poolformerv2_s12 tiny_vit_5m_224 lcnetv2_small hgnetv2_b0
    samvit_base_patch16_224 vit_srelpos_small_patch16_224 levit_128s rdnet_tiny naflexvit_base_patch16_parfac_gap
    deit_tiny_patch16_224 vit_tiny_patch16_224 vit_tiny_r_s16_p8_224 pit_ti_224 regnetx_002 swinv2_tiny_window16_256
    davit_tiny sequencer2d_s convmixer_768_32 xception41p dpn48b efficientvit_b0 hardcorenas_b lowformer_b0
    swinv2_cr_tiny_224 xcit_nano_12_p8_224 coat_tiny rexnet_100 iformer_t twins_svt_small shvit_s1 volo_d1_224
    focalnet_tiny_srf vitamin_small_224 gcvit_xxtiny ghostnet_050 efficientformerv2_s0 tnt_s_legacy_patch16_224
    mobilevit_xxs hrnet_w18_small halonet_h1 nextvit_small crossvit_tiny_240 gemma4_vit_167m cait_xxs24_224 csatv2
    adv_inception_v3 efficientvit_m0 tresnet_m repvit_m1 repghostnet_050 densenet121 fastvit_s12 deepseek_vit_412m
    maxvit_pico_rw_256 mobilenetv5_base inception_v4 pnasnet5large ens_adv_inception_resnet_v2 mobileone_s0
    nasnetalarge
"""
"""The smallest member of each family (a module of timm.models) of timm 1.0.30, but for toys of its tests; those of the
fewest layers first."""

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32, "embedding_size": 32,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "num_attention_heads": 4, "num_heads": 4, "n_head": 4,
    "n_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "ffn_dim": 64, "d_ff": 64, "d_kv": 8, "hidden_dim": 64, "n_inner": 64, "d_inner": 64,
    "head_dim": 8, "max_position_embeddings": 64, "n_positions": 64, "image_size": 64, "patch_size": 8,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "use_cache": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_mel_bins": 16, "conv_dim": [32, 32, 32],
    "conv_stride": [4, 2, 2], "conv_kernel": [8, 3, 3], "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "layerdrop": 0.0, "num_labels": 3,
}  # fmt: skip
"""What the configurations of transformers are made small with, where they have such a number."""

TRANSFORMERS = {
    "encoder": """
        albert bert bert-generation camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm
        eurobert flaubert fnet ibert layoutlm lilt megatron-bert mobilebert modernbert mpnet nomic_bert
        nystromformer rembert roberta roberta-prelayernorm roc_bert roformer splinter squeezebert xlm xlm-roberta
        xlm-roberta-xl xlnet xmod yoso""",
    "decoder": """
        apertus arcee biogpt bitnet bloom codegen cohere cohere2 ctrl deepseek_v3 diffllama doge ernie4_5 exaone4 falcon
        gemma gemma2 gemma3_text glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite helium llama mamba mistral
        mixtral mpt nemotron olmo olmo2 openai-gpt opt persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe smollm3
        stablelm starcoder2 xglm""",
    "encoder-decoder": """
        bart blenderbot blenderbot-small fsmt led longt5 m2m_100 marian mbart mt5 mvp pegasus pegasus_x plbart
        prophetnet switch_transformers t5 umt5""",
    "vision": """
        beit bit clip_vision_model convnext convnextv2 cvt data2vec-vision deit dinov2 dinov2_with_registers dinov3_vit
        dpt efficientnet focalnet glpn hiera ijepa levit mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer pvt
        pvt_v2 regnet resnet segformer siglip_vision_model swiftformer swin swin2sr swinv2 textnet vit vit_msn yolos""",
    "speech": """
        audio-spectrogram-transformer data2vec-audio hubert sew sew-d speech_to_text unispeech unispeech-sat wav2vec2
        wav2vec2-bert wav2vec2-conformer wavlm whisper""",
}
"""Architectures of transformers by what goes in."""

_STAGES = {"embed_dim": 32, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8], "patch_size": 4, "window_size": 4}
MORE: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 64},
    "codegen": {"n_head": 16, "n_embd": 64, "rotary_dim": 4},
    "convnext": {"depths": [1, 1, 2, 1], "hidden_sizes": [16, 32, 48, 64], "patch_size": 4},
    "convnextv2": {"depths": [1, 1, 2, 1], "hidden_sizes": [16, 32, 48, 64], "patch_size": 4},
    "deepseek_v3": {
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 16,
        "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4,
    },
    "efficientnet": {"hidden_dim": 1280, "width_coefficient": 1.0, "depth_coefficient": 1.0},
    "esm": {"vocab_size": 99, "pad_token_id": 0, "mask_token_id": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "hiera": {"embed_dim": 24, "depths": [1, 1, 2, 1]},
    "levit": {"patch_size": 16},
    "lilt": {"hidden_size": 96},
    "mamba": {"state_size": 8},
    "mobilevit": {"patch_size": 2},
    "mobilevitv2": {"patch_size": 2},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 4},
    "pvt": {"depths": [1, 1, 2, 1]},
    "swin": {**_STAGES, "image_size": 128},
    "swin2sr": {**_STAGES, "depths": [1, 1], "num_heads": [2, 2], "patch_size": 1, "image_size": 16},
    "swinv2": _STAGES,
    "textnet": {"image_size": [64, 64]},
    "whisper": {"max_source_positions": 32},
    "xmod": {"default_language": "en_XX"},
    "yolos": {"image_size": [64, 64]},
}  # fmt: skip
"""What else their configurations need."""


KERAS = """
    VGG16 VGG19 MobileNet MobileNetV2 MobileNetV3Small MobileNetV3Large ResNet50 ResNet50V2 Xception EfficientNetB0
    EfficientNetV2B0 EfficientNetV2B1 ConvNeXtTiny InceptionV3 ResNet101 ResNet101V2 EfficientNetB1 EfficientNetB2
    EfficientNetV2B2 EfficientNetV2B3 EfficientNetB3 ConvNeXtSmall ConvNeXtBase ResNet152 ResNet152V2 DenseNet121
    EfficientNetB4 EfficientNetV2S DenseNet169 ConvNeXtLarge EfficientNetB5 DenseNet201 EfficientNetB6 EfficientNetV2M
    NASNetMobile ConvNeXtXLarge EfficientNetB7 InceptionResNetV2 EfficientNetV2L NASNetLarge
"""
"""Every network of keras.applications, those of the fewest layers first."""

KERAS_SIDES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71, "NASNetMobile": 224, "NASNetLarge": 331}

FEW = """
    timm/convnext_zepto_rms timm/densenet121 timm/edgenext_xx_small timm/efficientvit_m0 timm/ghostnet_050
    timm/hardcorenas_b timm/inception_next_atto timm/levit_128s timm/mambaout_femto timm/mixer_s16_224
    timm/mobilenetv3_small_050 timm/mobilevit_xxs timm/pit_ti_224 timm/pvt_v2_b0 timm/regnetx_002 timm/repvit_m1
    timm/resnet10t timm/tinynet_e timm/vit_tiny_patch16_224 timm/xcit_nano_12_p8_224 encoder/bert decoder/llama
    encoder-decoder/t5 vision/vit speech/wav2vec2
"""
"""Twenty models of timm and five of transformers: with the built-in ones what `--few` takes."""


def names() -> list[str]:
    """Every model: "weft/<built-in>", "timm/<model>", "<kind>/<architecture>" and "keras-<backend>/<application>"."""
    kinds = {"weft": BUILT_IN, "timm": TIMM, **TRANSFORMERS, "keras-jax": KERAS, "keras-torch": KERAS}
    return [f"{kind}/{one}" for kind, known in kinds.items() for one in known.split()]


# ------------------------------------------------------------------------------------------------------- models


class NotBuilt(RuntimeError):
    """A model that its package does not make here; the text says why."""


def made(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A model that takes tensors in order and gives tensors, and such tensors."""
    import torch

    torch.manual_seed(0)
    kind, _, what = name.partition("/")
    try:
        if kind in ("weft", "timm"):
            model, inputs = {"weft": _built_in, "timm": _of_timm}[kind](what)
        else:
            model, inputs = _of_transformers(kind, what)
    except Exception as error:  # noqa: BLE001  whatever a package says about its own model is data of this table
        raise NotBuilt(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
    return model, inputs


def _built_in(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    from benchmarks.models import random_feeds
    from benchmarks.torch_models import to_torch
    from weft import models

    graph = models.make(name)
    return _Flat(to_torch(graph), None), tuple(map(torch.from_numpy, random_feeds(graph).values()))


def import_timm() -> Any:
    """The module, also without torchvision."""
    if importlib.util.find_spec("torchvision") is None:
        _stand_in_for_torchvision()
    import timm

    return timm


def _of_timm(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    timm = import_timm()
    whole = timm.create_model(name, num_classes=10)
    default = whole.pretrained_cfg.get("input_size", (3, 224, 224))
    problem: Exception | None = None
    for side in [one for one in SIDES if one < default[1]] + [default[1]]:
        for given in ({"img_size": side}, {}):
            image = torch.randn(1, default[0], side, side)
            try:
                model = timm.create_model(name, num_classes=10, **given) if given else whole
                with torch.no_grad():
                    found = _unsettled(model.eval())(image)
                if found.isfinite().all() and found.std() > 0:
                    return _Flat(model, None), (image,)
            except Exception as error:  # noqa: BLE001  this side is none of the model's
                problem = error
    raise problem or RuntimeError("no side of an image gives numbers")


def _stand_in_for_torchvision() -> None:
    """timm imports names of torchvision, and its models use none of them."""

    class Named(type):
        def __getattr__(cls, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return Named(name, (), {})

    parts = (
        "ops ops.misc transforms transforms.functional transforms.v2 models models.feature_extraction datasets utils io"
    )
    for name in ["torchvision", *(f"torchvision.{one}" for one in parts.split())]:
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        module.__getattr__ = lambda wanted, name=name: (
            sys.modules.get(f"{name}.{wanted}") or getattr(Named("", (), {}), wanted)
        )  # type: ignore[method-assign]
        sys.modules[name] = module


def _of_transformers(kind: str, name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch
    from transformers import AutoConfig, AutoModel

    known = AutoConfig.for_model(name).to_dict()
    small = {key: one for key, one in SMALL.items() if isinstance(known.get(key), type(one))}
    config = AutoConfig.for_model(name, **{**small, **MORE.get(name, {})})
    model = _unsettled(AutoModel.from_config(config).eval())
    ids = torch.randint(3, 99, (1, 16))
    if kind in ("encoder", "decoder"):
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        given["attention_mask"][:, -3:] = int(kind == "decoder")
    elif kind == "encoder-decoder":
        given = {"input_ids": ids, "decoder_input_ids": ids[:, :9]}
    elif kind == "vision":
        side = getattr(config, "image_size", 64)
        side = side if isinstance(side, int) else max(side)
        given = {"pixel_values": torch.randn(1, getattr(config, "num_channels", 3), side, side)}
    else:
        given = _speech(model, config, ids)
    return _Flat(model, list(given)), tuple(given.values())


def _speech(model: Any, config: Any, ids: Any) -> dict[str, Any]:
    import torch

    bins = getattr(config, "num_mel_bins", 16)
    if model.main_input_name == "input_values" and not hasattr(config, "num_mel_bins"):
        return {"input_values": torch.randn(1, 1600)}
    if config.model_type == "whisper":
        return {
            "input_features": torch.randn(1, bins, 2 * config.max_source_positions),
            "decoder_input_ids": ids[:, :7],
        }
    if config.model_type == "speech_to_text":
        return {"input_features": torch.randn(1, 64, config.input_feat_per_channel), "decoder_input_ids": ids[:, :7]}
    if config.model_type == "wav2vec2-bert":
        return {"input_features": torch.randn(1, 32, config.feature_projection_input_dim)}
    return {model.main_input_name: torch.randn(1, config.max_length, bins)}


def _unsettled(model: Any) -> Any:
    """The model, its parameters that are constants disturbed, and the statistics of its normalisations."""
    import torch

    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, one in [*model.named_parameters(), *model.named_buffers()]:
            constant = one.is_floating_point() and one.numel() > 1 and bool((one == one.flatten()[0]).all())
            if not constant or not (
                name.endswith(("running_mean", "running_var")) or isinstance(one, torch.nn.Parameter)
            ):
                continue
            noise = torch.rand(one.shape, generator=draw) - 0.5
            one.add_((0.2 * noise * (0.1 + one.abs())).to(one.dtype))
    return model


class _Flat:  # becomes a torch.nn.Module when one is made, so that this file loads without torch
    """A model as a module that takes tensors in order and gives a list of tensors."""

    def __new__(cls, model: Any, keywords: list[str] | None) -> Any:
        import torch

        class Flat(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, *tensors: Any) -> list[Any]:
                found = self.model(*tensors) if keywords is None else self.model(**dict(zip(keywords, tensors)))
                leaves = torch.utils._pytree.tree_leaves(dict(found) if isinstance(found, dict) else found)
                return [one for one in leaves if isinstance(one, torch.Tensor)]

        return Flat().eval()


# ------------------------------------------------------------------------------------------------ one of them


def examine(name: str, threads: int, seconds: float, door: str) -> dict[str, Any]:
    """What becomes of one model: how it ends, in which time, and with `seconds` how fast beside inductor."""
    import torch

    import weft

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    torch._dynamo.reset()  # or it takes another model's sizes for sizes that vary
    row: dict[str, Any] = {"name": name, "outcome": "right"}
    try:
        model, inputs = made(name)
        with torch.no_grad():
            wanted = model(*inputs)
        row["parameters"] = sum(one.numel() for one in model.parameters())
        row["inputs"] = [list(one.shape) for one in inputs]
    except Exception as error:  # noqa: BLE001  whatever a package says about its own model is data of this table
        return {**row, "outcome": "not built", "said": _first_lines(error)}
    with torch.no_grad():
        if seconds:
            _warm(door)
        begun = time.perf_counter()
        if door == "torch.compile":
            import weft.torch_backend

            run = torch.compile(model, backend="weft", options={"threads": threads, "fallback": False})
        else:
            try:
                program = torch.export.export(model, inputs, strict=False)
            except Exception as error:  # noqa: BLE001  torch's own refusal, in any of its classes
                return {**row, "outcome": "no export", "said": _first_lines(error)}
            row["export_s"] = time.perf_counter() - begun
        try:
            begun = time.perf_counter()
            if door == "export":
                run = weft.compile(program, threads=threads)
            found = run(*inputs) if door != "numpy" else meaning(program, inputs)
            row["compile_s"] = time.perf_counter() - begun
        except weft.WeftError as error:
            return {**row, "outcome": "refused", "said": _first_lines(error, 2000)}
        except Exception as error:  # noqa: BLE001  anything but a refusal is a fault of Weft's
            return {**row, "outcome": "failed", "said": f"{type(error).__name__}: {_first_lines(error, 2000)}"}
        row.update(compared(wanted, found))
        if seconds and row["outcome"] == "right":
            row.update(_speed(model, run, inputs, seconds))
    return row


def through_keras(name: str, threads: int) -> dict[str, Any]:
    """What becomes of a network of keras.applications with one of Keras' backends."""
    kind, _, what = name.partition("/")
    os.environ["KERAS_BACKEND"] = kind.removeprefix("keras-")
    import keras
    import torch

    import weft

    warnings.simplefilter("ignore")
    keras.utils.set_random_seed(0)
    side, draw = KERAS_SIDES.get(what, 64), np.random.default_rng(0)
    row: dict[str, Any] = {"name": name, "outcome": "right", "inputs": [[1, side, side, 3]]}
    given = {"weights": None, "input_shape": (side, side, 3), "classes": 10, "classifier_activation": None}
    model = getattr(keras.applications, what)(**given)
    for one in model.weights:
        had = np.asarray(one.numpy())
        if had.size > 1 and (had == had.flat[0]).all():
            one.assign((had + 0.2 * draw.uniform(-0.5, 0.5, had.shape) * (0.1 + np.abs(had))).astype(had.dtype))
    image = draw.uniform(-1, 1, (1, side, side, 3)).astype("float32")

    def reference(given: Any) -> torch.Tensor:
        with torch.no_grad():
            return torch.from_numpy(np.array(keras.ops.convert_to_numpy(model(given, training=False))))

    row["parameters"] = model.count_params()
    moved = _moved(reference, image)
    if moved > TOLERANCE / 10:
        row["said"] = f"one ulp moves its answer by {moved:.1e}: weights of {STEADY} of their size"
        for one in model.weights:
            if len(one.shape) > 1:
                one.assign(np.asarray(one.numpy()) * np.float32(STEADY))
        if (moved := _moved(reference, image)) > TOLERANCE / 10:
            return {**row, "outcome": "unsteady", "said": f"{row['said']}, and then by {moved:.1e}"}
    begun = time.perf_counter()
    try:
        found = weft.compile(model, image, threads=threads)(image)
    except weft.WeftError as error:
        return {**row, "outcome": "refused", "said": _first_lines(error, 2000)}
    except Exception as error:  # noqa: BLE001  anything but a refusal is a fault of Weft's
        return {**row, "outcome": "failed", "said": f"{type(error).__name__}: {_first_lines(error, 2000)}"}
    row["compile_s"] = time.perf_counter() - begun
    return row | compared([reference(image)], [torch.from_numpy(np.array(found))])


def _moved(reference: Any, image: Any) -> float:
    """How far a network's own answer moves when each element of its image does, to the next number."""
    row = compared([reference(image)], [reference(np.nextafter(image, np.inf, dtype=image.dtype))])
    return float(row.get("error", math.inf))


def meaning(program: Any, inputs: tuple[Any, ...]) -> Any:
    """What an exported program gives by the numpy meaning of its graph: without kernels, so without their time."""
    from weft.frontends.torch.calls import as_array, as_tensor
    from weft.frontends.torch.source import load
    from weft.graph.interpreter import interpret_graph

    made = load(program)
    arrays = [as_array(one) for one in made.calls.flatten(inputs, {})]
    return made.calls.unflatten([as_tensor(np.array(one)) for one in interpret_graph(made.graph, arrays)])


def compared(wanted: list[Any], found: list[Any]) -> dict[str, Any]:
    """The greatest difference of each output beside its greatest element, and what that makes of the model."""
    worst = 0.0
    for at, (one, other) in enumerate(zip(wanted, found, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return {"outcome": "wrong", "said": f"output {at}: {other.dtype}{list(other.shape)}"}
        finite = one.isfinite() & one.is_floating_point()
        same = (one == other) | (one.isnan() & other.isnan())
        if not bool((same | finite).all()):
            return {"outcome": "wrong", "said": f"output {at} differs where it is no finite number"}
        if bool(finite.any()):
            apart = (one.double() - other.double())[finite].abs().max().item()
            scale = one[finite].abs().max().item() or 1.0
            worst = max(worst, apart / scale) if math.isfinite(apart) else math.inf
    return {"outcome": "right" if worst <= TOLERANCE else "wrong", "error": worst}


@functools.cache
def _warm(door: str) -> float:
    """Brings a door's modules in and, for inductor, its headers: a first call is of a model, not of a process."""
    import torch

    import weft
    import weft.torch_backend

    begun = time.perf_counter()
    relu, given = torch.nn.ReLU(), torch.ones(100)
    made = weft.compile(relu, given) if door == "export" else torch.compile(relu, backend=_BACKENDS[door])
    made(given)
    torch._dynamo.reset()
    return time.perf_counter() - begun


_BACKENDS = {"torch.compile": "weft", "inductor": "inductor"}


def _speed(model: Any, run: Any, inputs: tuple[Any, ...], seconds: float) -> dict[str, Any]:
    import torch

    torch._dynamo.reset()
    try:
        warm = _warm("inductor")
        begun = time.perf_counter()
        theirs = torch.compile(model)
        theirs(*inputs)
    except Exception as error:  # noqa: BLE001  the other side's problem is data of this table
        return {"said": f"inductor: {_first_lines(error)}"}
    taken = time.perf_counter() - begun
    stats = interleave({"weft": lambda: run(*inputs), "inductor": lambda: theirs(*inputs)}, seconds, settle=0.01)
    return {
        "inductor_warm_s": warm,
        "inductor_compile_s": taken,
        "weft_s": stats["weft"].median,
        "inductor_s": stats["inductor"].median,
        "times_as_fast": speed_ratio(stats["weft"], stats["inductor"]),
    }


def _first_lines(error: Exception, most: int = 300) -> str:
    return " ".join(str(error).split())[:most]


# ------------------------------------------------------------------------------------------------------- all


def apart(name: str, options: argparse.Namespace, free: queue.SimpleQueue[Served], until: float) -> dict[str, Any]:
    """One model in a process that none shares with it at the time, and not after `until`."""
    served = free.get()
    begun = time.perf_counter()
    limit = min(options.limit, until - begun)
    try:
        if limit <= 0:
            return {"name": name, "outcome": "not begun"}
        kind = name.partition("/")[0]
        if served.answered >= MOST_SERVED or (served.kind != kind and "keras" in served.kind + kind):
            served.end()  # the libraries have grown, or Keras has another backend
        served.kind = kind
        said = served.ask(name, limit)
        taken = time.perf_counter() - begun
        if isinstance(said, dict):
            return {**said, "whole_s": taken}
        if taken < limit:
            return {"name": name, "outcome": "failed", "said": said}
        cut = limit < options.limit
        return {"name": name, "outcome": "cut" if cut else "too slow", "said": f"more than {limit:.0f} s"}
    finally:
        free.put(served)


def examined(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each model as it ends."""
    order = list(chosen(options))[:: 1 if options.jobs == 1 else -1]  # the longest last would be waited for alone
    if options.seed is not None:
        random.Random(options.seed).shuffle(order)
    tried = {row["name"] for row in _rows([options.json])}
    order.sort(key=tried.__contains__)  # those that an earlier run cut come last
    until = time.perf_counter() + 60 * options.minutes
    known = sorted(os.sched_getaffinity(0)) if options.pin else []
    if options.pin and len(known) < options.jobs * options.threads:
        raise SystemExit(f"{options.jobs} jobs of {options.threads} threads, and {len(known)} cores to pin them to")
    command = [sys.executable, "-m", "benchmarks.architectures", "--serve", "--threads", str(options.threads)]
    command += ["--door", options.door, "--seconds", str(options.seconds)] + ["--speed"] * options.speed
    cold = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    every = []
    caches = tempfile.TemporaryDirectory()
    free: queue.SimpleQueue[Served] = queue.SimpleQueue()
    for job in range(options.jobs):
        cores = [str(one) for one in known[job * options.threads :][: options.threads]]
        own = {**cold, "WEFT_CACHE_DIR": f"{caches.name}/{job}"} if options.speed else {}
        every.append(Served([*command, *(["--cores", *cores] if cores else [])], own))
        free.put(every[-1])
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(apart, name, options, free, until) for name in order]):
            row = done.result()
            if row["outcome"] == "not begun":
                continue
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            sys.stderr.write(f"{row['outcome']:10} {row['name']}  {row.get('said', '')[:150]}\n")
            yield row
    for served in every:
        served.end()
    caches.cleanup()


def serve(options: argparse.Namespace) -> None:
    """A process of `examined`: names in, rows out."""
    if options.cores:
        os.sched_setaffinity(0, options.cores)

    def one(name: str) -> dict[str, Any]:
        if name.startswith("keras-"):
            return through_keras(name, options.threads)
        for kept in ("models", "kernels") if options.speed else ():  # first calls are those of a model that is new
            shutil.rmtree(Path(os.environ["WEFT_CACHE_DIR"]) / kept, ignore_errors=True)
        return examine(name, options.threads, options.seconds if options.speed else 0, options.door)

    answer(one)


def chosen(options: argparse.Namespace) -> Iterator[str]:
    """The models that are asked for and not yet known."""
    done = {row["name"] for row in _rows([options.json]) if row["outcome"] not in ("too slow", "cut")}
    few = FEW.split() + [f"weft/{one}" for one in BUILT_IN.split()]
    asked = [
        name
        for name in names()
        if (not options.few or name in few) and (not options.only or any(one in name for one in options.only))
    ]
    part, parts = map(int, options.share.split("/"))
    yield from (name for name in asked[part - 1 :: parts] if name not in done)


def _rows(paths: Sequence[Path | None]) -> list[dict[str, Any]]:
    """The last row of each model in these files, in the order of `names`."""
    lines = [line for one in paths if one and one.exists() for line in one.read_text(encoding="utf-8").splitlines()]
    found = {row["name"]: row for row in map(json.loads, lines)}
    return [found[name] for name in names() if name in found]


def _summary(rows: list[dict[str, Any]]) -> str:
    found = Counter(row["outcome"] for row in rows)
    asked = len(rows) - found["not built"] - found["no export"] - found["cut"]
    said = ", ".join(f"{count} {outcome}" for outcome, count in found.most_common())
    line = f"{found['right']} of {asked} right ({100 * found['right'] / max(asked, 1):.1f} %): {said}"
    measured = [row for row in rows if "times_as_fast" in row]
    if measured:
        for what, ratios in (
            ("as fast as inductor", [row["times_as_fast"] for row in measured]),
            ("as soon compiled", [row["inductor_compile_s"] / _first_call(row) for row in measured]),
        ):
            mean, better = statistics.geometric_mean(ratios), sum(one >= 1 for one in ratios)
            line += f"\n{mean:.2f} times {what} in the geometric mean of {len(ratios)}; {better} of them at least so"
    return line


def _first_call(row: dict[str, Any]) -> float:
    return float(row.get("export_s", 0.0) + row["compile_s"])


def _print(rows: list[dict[str, Any]]) -> None:
    columns = "outcome error export_s compile_s inductor_compile_s weft_s inductor_s times_as_fast".split()
    shown = [column for column in columns if any(column in row for row in rows)]
    print_table("Architectures", ["name", *shown], [[row["name"], *(row.get(one) for one in shown)] for row in rows])
    for row in rows:
        if row["outcome"] != "right":
            sys.stdout.write(f"{row['name']}: {row['outcome']}: {row.get('said', row.get('error', ''))}\n")
    for kind in dict.fromkeys(row["name"].partition("/")[0] for row in rows):
        sys.stdout.write(f"{kind}: {_summary([row for row in rows if row['name'].startswith(kind + '/')])}\n")
    sys.stdout.write(f"all: {_summary(rows)}\n")


def main() -> None:
    """The table: `python -m benchmarks.architectures`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="models whose names hold one of these words")
    parser.add_argument("--few", action="store_true", help="the built-in models, 20 of timm and 5 of transformers")
    parser.add_argument("--jobs", type=int, default=1, help="how many models at a time (default 1)")
    parser.add_argument("--share", default="1/1", metavar="K/N", help="the k-th of n parts, for a machine of its own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each model; skip those in it")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each model (default 600)")
    doors = "torch.export and kernels; the backend of torch.compile; or the import alone, run by numpy"
    parser.add_argument("--door", choices=("export", "torch.compile", "numpy"), default="export", help=doors)
    parser.add_argument("--speed", action="store_true", help="also measure, beside torch.compile (inductor)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure each (default 2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="the names alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end by then, whatever is left")
    parser.add_argument("--seed", type=int, help="in a random order: what was done by then is a fair sample")
    parser.add_argument("--pin", action="store_true", help="each job on cores of its own, as many as threads")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="only the table of these files")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
    if options.list:
        sys.stdout.write("\n".join(chosen(options)) + "\n")
        return
    if options.join:
        _print(_rows(options.join))
        return
    rows = {row["name"]: row for row in [*_rows([options.json]), *examined(options)]}
    print_system()
    _print([rows[name] for name in names() if name in rows])


if __name__ == "__main__":
    main()
