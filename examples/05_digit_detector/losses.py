"""The loss of FCOS (Tian et al., 2019): focal loss on the probabilities of each cell, GIoU loss on
the boxes of the cells near a digit's centre.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from digit_scenes import Scene
from torch import Tensor

BOX_WEIGHT = 2.0


def targets(scenes: list[Scene], middle: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """What each cell should answer: the digit or -1 for none, int64 [B, rows, columns], and the
    corners of its box in pixels [B, 4, rows, columns].

    middle: the middles of the cells in pixels [2, rows, columns]. A cell answers for a digit if its
    middle is in the digit's box and at most `radius` pixels away from the centre of the box, along
    each axis. Of several digits it answers for the smallest.
    """
    x, y = middle
    kinds = torch.full((len(scenes), *x.shape), -1)
    corners = torch.zeros(len(scenes), 4, *x.shape)
    for at, one in enumerate(scenes):
        boxes = torch.from_numpy(one.corners).to(middle)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        for index in areas.argsort(descending=True).tolist():
            left, top, right, bottom = boxes[index]
            inside = (x > left) & (x < right) & (y > top) & (y < bottom)
            aside, above = (x - (left + right) / 2).abs(), (y - (top + bottom) / 2).abs()
            cells = inside & (torch.maximum(aside, above) < radius)
            kinds[at][cells] = int(one.labels[index])
            corners[at][:, cells] = boxes[index][:, None]
    return kinds, corners


def focal_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Lin et al., 2017, with α = 0.25 and γ = 2, summed. Both float [...]; the target is 0 or 1."""
    p = logits.sigmoid()
    cross_entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    wrong = torch.where(target > 0, 1 - p, p)
    alpha = torch.where(target > 0, 0.25, 0.75)
    return (alpha * wrong**2 * cross_entropy).sum()


def giou_loss(boxes: Tensor, truth: Tensor) -> Tensor:
    """1 - GIoU (Rezatofighi et al., 2019) of each pair of boxes, [n, 4] as corners: [n]."""
    (start, stop), (start_true, stop_true) = boxes.split(2, 1), truth.split(2, 1)
    sides = torch.minimum(stop, stop_true) - torch.maximum(start, start_true)
    intersection = sides.clamp(min=0).prod(1)
    union = (stop - start).prod(1) + (stop_true - start_true).prod(1) - intersection
    hull = (torch.maximum(stop, stop_true) - torch.minimum(start, start_true)).prod(1)
    return 1 - intersection / union + (hull - union) / hull


def loss(
    sides: Tensor, logits: Tensor, middle: Tensor, scenes: list[Scene], radius: float
) -> Tensor:
    """The sum of both losses, per cell that answers for a digit. sides [B, 4, rows, columns] and
    logits [B, classes, rows, columns] as the model's `maps` returns them; the rest as for
    `targets`."""
    kinds, corners = targets(scenes, middle, radius)
    target = F.one_hot(kinds + 1, logits.shape[1] + 1)[..., 1:].permute(0, 3, 1, 2).to(logits)
    cells = kinds >= 0
    predicted = torch.cat([middle - sides[:, :2], middle + sides[:, 2:]], 1)
    boxes, truth = (one.permute(0, 2, 3, 1)[cells] for one in (predicted, corners))
    count = cells.sum().clamp(min=1)
    return (focal_loss(logits, target) + BOX_WEIGHT * giou_loss(boxes, truth).sum()) / count
