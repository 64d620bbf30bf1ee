"""QAT with the loss of a detector's own head: Hungarian matching, classes, boxes (transformers)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from optkit.satellites import qat

transformers = pytest.importorskip("transformers")
pytest.importorskip("scipy", reason="the matcher of transformers needs it")
SIDE, BATCH = 32, 4


def detector() -> nn.Module:
    """YOLOS with 16 patches and 5 detection tokens: logits [B, 5, 4], boxes [B, 5, 4]."""
    torch.manual_seed(0)
    config = transformers.YolosConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=[SIDE, SIDE], patch_size=8, num_detection_tokens=5, num_labels=3,
    )  # fmt: skip
    return transformers.YolosForObjectDetection(config).eval()


def scenes(count: int) -> list[tuple[Tensor, list[dict[str, Tensor]]]]:
    """Images [B, 3, 32, 32] with a bright square each, and its class and box (middle, size)."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        images = 0.1 * torch.randn(BATCH, 3, SIDE, SIDE, generator=draw)
        labels = []
        for image in images:
            kind, left, top = (int(torch.randint(n, (1,), generator=draw)) for n in (3, 20, 20))
            image[kind, top : top + 10, left : left + 10] += 2
            box = torch.tensor([[left + 5, top + 5, 10, 10]]) / SIDE
            labels.append({"class_labels": torch.tensor([kind]), "boxes": box})
        found.append((images, labels))
    return found


@pytest.mark.slow
def test_a_loop_with_the_loss_of_the_head_trains_what_the_build_would_quantize() -> None:
    data = scenes(8)
    example = {"pixel_values": data[0][0]}
    student = qat.prepare(
        detector(), example, target="l4", precision="int8",
        recipe={"axes": {"batch": {"min": 1, "opt": BATCH, "max": 8}}},
        calibration=[{"pixel_values": images} for images, _ in data],
    )  # fmt: skip
    distillation = qat.Distillation(student)
    optimizer = torch.optim.AdamW(qat.parameter_groups(student, 0.1))
    losses = []
    for _ in range(6):
        for images, labels in data:
            outputs = student(pixel_values=images, labels=labels)
            kept = distillation(outputs, pixel_values=images, labels=labels)
            loss = outputs.loss + 0.1 * kept  # the float model is not trained either
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(outputs.loss.detach()))
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    assert qat.finalize(student).trained_scales
