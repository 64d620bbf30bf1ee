"""Artifacts at the end of a training, one line for each kind of loop; and their figures in
experiment trackers.

    deploy(model, loader, targets=["l4"])                   a plain loop, or Accelerate
    transformers.DeployCallback(targets=["l4"])             the Trainer of Hugging Face
    transformers.DistillationTrainer(qat.prepare(...))      the same, for a model that qat prepared
    lightning.DeployCallback(targets=["l4"])                PyTorch Lightning
    tracking.log(artifact, to="mlflow")                     the figures in a tracker

Only the process of rank 0 builds. A build that fails is logged and never ends the training: the
trained weights are worth more than an artifact, which `optkit build` can build later. The module
does not change.

    deployment      what is built, and how failures are handled
    transformers    the callback for transformers.Trainer, and a Trainer that distils
    lightning       the callback for Lightning's Trainer
    tracking        figures in MLflow, Weights & Biases or trackio
"""

from __future__ import annotations

from optkit.verbs.integrations.deployment import Deployment, deploy

__all__ = ["Deployment", "deploy"]
