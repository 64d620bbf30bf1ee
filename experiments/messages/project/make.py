"""Writes the user's models, weights and arrays, those with mistakes too, into this folder."""

from pathlib import Path

import numpy as np
import onnx
import torch
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from net import Net
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
value = helper.make_tensor_value_info


def model(name, nodes, inputs, outputs, weights):
    graph = helper.make_graph(
        nodes, name, inputs, outputs,
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def mlp(weights, rows="batch"):
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "first"),
        helper.make_node("Add", ["m1", "b1"], ["a1"], "bias1"),
        helper.make_node("Relu", ["a1"], ["h"], "relu"),
        helper.make_node("MatMul", ["h", "w2"], ["m2"], "second"),
        helper.make_node("Add", ["m2", "b2"], ["y"], "bias2"),
    ]
    return model("small", nodes, [value("x", TensorProto.FLOAT, [rows, 16])],
                 [value("y", TensorProto.FLOAT, [rows, 4])], weights)  # fmt: skip


def photo(weights):
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["mean"], "pool"),
        helper.make_node("Flatten", ["mean"], ["flat"], "flatten"),
        helper.make_node("MatMul", ["flat", "w"], ["logits"], "head"),
    ]
    return model("photo", nodes, [value("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
                 [value("logits", TensorProto.FLOAT, ["batch", 4])], weights)  # fmt: skip


def models(rng):
    shapes = {"w1": (16, 32), "b1": (32,), "w2": (32, 4), "b2": (4,)}
    weights = {n: rng.standard_normal(s).astype(np.float32) / 4 for n, s in shapes.items()}
    np.savez(HERE / "weights.npz", **weights)
    onnx.save(mlp(weights), HERE / "small.onnx")
    onnx.save(photo({"w": rng.standard_normal((3, 4)).astype(np.float32)}), HERE / "photo.onnx")
    holed = {**weights, "w2": weights["w2"].copy()}
    holed["w2"][3, 1] = np.nan
    onnx.save(mlp(holed), HERE / "holed.onnx")
    (HERE / "torn.onnx").write_bytes((HERE / "small.onnx").read_bytes()[:-200])
    onnx.save(mlp(weights), HERE / "split.onnx", save_as_external_data=True,
              location="split.data", size_threshold=0)  # fmt: skip
    (HERE / "split.data").unlink()


def checkpoints():
    torch.manual_seed(0)
    state = Net().state_dict()
    torch.save(state, HERE / "weights.pt")
    torch.save({"model": state, "epoch": 3}, HERE / "last.ckpt")
    save_file(state, HERE / "weights.safetensors")
    save_file({f"module.{key}": one for key, one in state.items()}, HERE / "ddp.safetensors")
    save_file(Net(10).state_dict(), HERE / "ten_classes.safetensors")
    other = {key.replace("body.0", "encoder"): one for key, one in state.items()}
    save_file(other, HERE / "other.safetensors")


def arrays(rng):
    x = rng.standard_normal((96, 16)).astype(np.float32)
    labels = rng.integers(0, 4, 96)
    np.savez(HERE / "good.npz", x=x, label=labels)
    np.savez(HERE / "images.npz", image=x)
    np.savez(HERE / "targets.npz", x=x, labels=labels)
    np.savez(HERE / "counted_from_1.npz", x=x, label=labels + 1)
    np.savez(HERE / "wide.npz", x=np.ones((96, 17), np.float32))
    np.savez(HERE / "double.npz", x=x.astype(np.float64))
    np.savez(HERE / "few.npz", x=x[:3])
    np.savez(HERE / "uneven.npz", x=x, label=labels[:90])
    np.savez(HERE / "channels_last.npz", image=rng.random((40, 8, 8, 3)).astype(np.float32))
    np.savez(HERE / "objects.npz", x=np.array([x[0], x[1, :3]], dtype=object))
    gaps = x.copy()
    gaps[13, 2] = np.nan
    np.savez(HERE / "gaps.npz", x=gaps)


def keys():
    private = ec.generate_private_key(ec.SECP256R1())
    other = ec.generate_private_key(ec.SECP256R1())
    for name, key in {"private": private, "rsa": rsa.generate_private_key(65537, 2048)}.items():
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (HERE / f"{name}.pem").write_bytes(secret)
    for name, key in {"public": private, "other": other}.items():
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (HERE / f"{name}.pem").write_bytes(public)


if __name__ == "__main__":
    models(np.random.default_rng(0))
    checkpoints()
    arrays(np.random.default_rng(9))
    keys()
