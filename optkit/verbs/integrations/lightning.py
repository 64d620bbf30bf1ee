"""The callback for the Trainer of PyTorch Lightning.

Trainer(..., callbacks=[DeployCallback(Deployment(targets=["l4"], precisions=["int8"]))])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lightning.pytorch import Callback, LightningModule, Trainer

from optkit.ground.artifact import Artifact
from optkit.verbs.integrations.deployment import LOG, Deployment

if TYPE_CHECKING:
    from torch.nn import Module


class DeployCallback(Callback):  # type: ignore[misc]  # the library is optional
    """Builds artifacts when the training has ended. `artifacts` holds them afterwards.

    network: the network of a LightningModule, e.g. `lambda module: module.net`; None: the module
        itself, by its `forward`.

    The example, and the calibration samples if the deployment names none, come from the loader of
    the training. An unknown target or precision is refused now, and not after the training: raises
    UnknownName, Impossible.
    """

    def __init__(
        self, deployment: Deployment, network: Callable[[LightningModule], Module] | None = None
    ) -> None:
        deployment.check()
        self.deployment = deployment
        self.network = network
        self.artifacts: tuple[Artifact, ...] = ()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        try:
            model = pl_module if self.network is None else self.network(pl_module)
        except Exception:  # of the caller's own code: the training ends as it would without it
            LOG.exception("no artifact: `network` failed")
            return
        self.artifacts = self.deployment.build(model, trainer.train_dataloader)
