"""Keras models of every kind, their files, and the networks of keras.applications, against Keras itself."""

import os
import subprocess
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

pytest.importorskip("jax")
keras = pytest.importorskip("keras")

import weft  # noqa: E402
from weft.core.errors import ArgumentError, FrontendError  # noqa: E402
from weft.frontends.keras import load  # noqa: E402
from weft.graph.interpreter import interpret_graph  # noqa: E402

layers = keras.layers
draw = np.random.default_rng(0)
APPLICATIONS = (
    "MobileNet MobileNetV2 MobileNetV3Small MobileNetV3Large EfficientNetB0 EfficientNetV2B0 DenseNet121 NASNetMobile "
    "ResNet50 ResNet50V2 ResNet101 ResNet152V2 InceptionV3 InceptionResNetV2 Xception VGG16 VGG19 ConvNeXtTiny"
).split()
SIDES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71, "NASNetMobile": 224}


def close(found, wanted, tolerance=1e-4):
    wanted = [np.asarray(one) for one in keras.tree.flatten(wanted)]
    found = [np.asarray(one) for one in keras.tree.flatten(found)]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, tolerance, tolerance * max(1, np.abs(other).max()))


def settled(model):
    """A model with weights that are neither 0 nor 1."""
    model.set_weights([draw.uniform(0.01, 0.2, one.shape).astype("f") for one in model.get_weights()])
    return model


def functional():
    image, number = keras.Input((8, 8, 3), name="image"), keras.Input((2,), name="number")
    x = layers.SeparableConv2D(6, 3, padding="same", activation="swish")(image)
    x = layers.LayerNormalization()(layers.AveragePooling2D(3, 2, "same")(x))
    x = layers.Concatenate()([layers.GlobalMaxPooling2D()(x), layers.Dense(4, "gelu")(number)])
    return settled(keras.Model({"image": image, "number": number}, [layers.Dense(3, "softmax")(x), x]))


def recurrent():
    model = [keras.Input((5, 4)), layers.Bidirectional(layers.GRU(6, return_sequences=True)), layers.LSTM(3)]
    return settled(keras.Sequential([*model, layers.Dense(2)]))


class Attention(keras.Model):
    """A subclassed model."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend = layers.Embedding(20, 8), layers.MultiHeadAttention(2, 4)
        self.norm, self.out = layers.LayerNormalization(), layers.Dense(3)

    def call(self, ids):
        x = self.embed(ids)
        return self.out(self.norm(x + self.attend(x, x)))


def test_functional_models_and_structures():
    model = functional()
    given = {"image": draw.normal(size=(2, 8, 8, 3)).astype("f"), "number": draw.normal(size=(2, 2)).astype("f")}
    compiled = weft.compile(model, given)
    close(compiled(given), model(given))
    assert {port.name for port in load(model).graph.inputs} == {"inputs_0_image", "inputs_0_number"}


def test_recurrent_and_subclassed_models_mean_what_keras_says():
    for model, x in (
        (recurrent(), draw.normal(size=(2, 5, 4)).astype("f")),
        (Attention(), draw.integers(0, 20, (2, 6))),
    ):
        x = x.astype("int32") if x.dtype.kind == "i" else x
        wanted = model(x)
        close(interpret_graph(load(model, (x,)).graph, [x]), [wanted])


class Counting(layers.Layer):
    def build(self, _):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.count.assign_add(1.0)
        return x * self.count


def test_layers_that_draw_are_off_and_those_that_remember_are_refused():
    x = draw.normal(size=(2, 3, 4)).astype("f")
    model = keras.Sequential([layers.RandomFlip("horizontal", seed=1), layers.GaussianNoise(1.0)])  # not built, either
    close(interpret_graph(load(model, (x[..., None],)).graph, [x[..., None]]), [x[..., None]])
    for layer in (layers.LSTM(5, stateful=True), Counting()):
        with pytest.raises(FrontendError, match="keeps what one call leaves"):
            load(keras.Sequential([keras.Input((3, 4), batch_size=2), layer]), (x,))


def test_files_and_errors(tmp_path):
    model = settled(keras.Sequential([keras.Input((4,)), layers.Dense(3, "relu"), layers.BatchNormalization()]))
    model.save(tmp_path / "model.keras")
    x = draw.normal(size=(1, 4)).astype("f")
    close(weft.compile(tmp_path / "model.keras")(x), model(x))
    (tmp_path / "bad.keras").write_bytes(b"no archive")
    with pytest.raises(FrontendError, match="cannot read"):
        weft.compile(tmp_path / "bad.keras")
    with pytest.raises(ArgumentError, match="with example inputs, weft.compile\\(model, x\\)"):
        weft.compile(Attention())
    with pytest.raises(ArgumentError, match="Sequential\\(\\[layer\\]\\)"):
        weft.compile(layers.Dense(3))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", APPLICATIONS)
def test_applications(name):
    side = SIDES.get(name, 64)
    model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=10)
    x = draw.uniform(0, 1, (1, side, side, 3)).astype("f")
    close(weft.compile(model, x)(x), model(x, training=False), 1e-3)


def test_a_model_of_one_input_says_itself_what_it_takes(tmp_path):
    image = keras.Input((6,))
    model = settled(keras.Model(image, layers.Dense(3, name="last")(image)))
    assert {node.origin for node in load(model).graph.nodes} == {"last"}  # a layer: no line of it is the user's
    model.save(tmp_path / "one.keras")
    x = draw.normal(size=(1, 6)).astype("f")
    for given in (model, tmp_path / "one.keras"):
        close(weft.compile(given)(x), model(x))


@pytest.mark.slow
def test_files_are_read_where_nobody_chose_a_backend(tmp_path):
    path = tmp_path / "small.keras"
    keras.Sequential([keras.Input((3,)), layers.Dense(2)]).save(path)
    others = {key: one for key, one in os.environ.items() if key != "KERAS_BACKEND"}
    command = [sys.executable, "-m", "weft", "inspect", str(path), "--hash"]
    subprocess.run(command, env={**others, "HOME": str(tmp_path)}, check=True, stdout=subprocess.DEVNULL)
