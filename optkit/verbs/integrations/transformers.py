"""The callback for the Trainer of Hugging Face transformers, and a Trainer that distils.

Trainer(..., callbacks=[DeployCallback(Deployment(targets=["l4"], precisions=["int8"]))])
DistillationTrainer(qat.prepare(model, ...), ...)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from optkit.ground.artifact import Artifact
from optkit.road.jobs.batches import Batch, without_labels
from optkit.satellites import qat
from optkit.verbs.integrations.deployment import Deployment

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


class DistillationTrainer(Trainer):
    """The Trainer, for a module that `optkit.qat.prepare` returned: its loss is `distillation`, in
    the training and in the evaluation (`eval_loss`). None: `qat.Distillation(model)`.

    The model is in evaluation mode, see there. It gets the labels of the data set, if it has some,
    and metrics are computed as in Trainer. A loss that is a function finds the loss of the labels
    in the outputs of the model.

    If no optimizer is given, it is Adam with `qat.parameter_groups`: 3e-4 is a good learning rate.
    """

    loss_is_scaled_for_ga = False  # it is the mean of a batch

    def __init__(
        self,
        model: Module,
        args: TrainingArguments | None = None,
        *others: Any,
        distillation: qat.Distillation | None = None,
        **named: Any,
    ) -> None:
        self.distillation = distillation or qat.Distillation(model)
        super().__init__(model, args, *others, **named)

    def create_optimizer(self, model: Module | None = None) -> Optimizer:
        if self.optimizer is None:
            args = self.args
            assert self.model is not None
            self.optimizer = torch.optim.Adam(
                qat.parameter_groups(self.model, args.learning_rate),
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
            )
        return self.optimizer

    def compute_loss(
        self,
        model: Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        model.eval()  # a step of Trainer begins with train()
        outputs = model(**inputs)
        loss = self.distillation(outputs, **without_labels(inputs))
        return (loss, outputs) if return_outputs else loss
