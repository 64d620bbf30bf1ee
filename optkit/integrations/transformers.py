"""The callback for the Trainer of Hugging Face transformers.

Trainer(..., callbacks=[DeployCallback(Deployment(targets=["l4"], precisions=["int8"]))])
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from optkit.api.batches import Batch
from optkit.artifact import Artifact
from optkit.integrations.deployment import Deployment

if TYPE_CHECKING:
    from torch.nn import Module


class DeployCallback(TrainerCallback):
    """Builds artifacts when the training has ended. `artifacts` holds them afterwards.

    The example, and the calibration samples if the deployment names none, come from the loader of
    the training. An unknown target or precision is refused now, and not after the training: raises
    UnknownName, Impossible.
    """

    def __init__(self, deployment: Deployment) -> None:
        deployment.check()
        self.deployment = deployment
        self.artifacts: tuple[Artifact, ...] = ()

    def on_train_end(  # type: ignore[override]  # the Trainer gives these by name
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Module,
        train_dataloader: Iterable[Batch],
        **others: object,
    ) -> None:
        if state.is_world_process_zero:
            self.artifacts = self.deployment.build(model, train_dataloader)
