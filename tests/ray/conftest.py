"""A real Ray cluster on this machine, whose nodes claim accelerators that they do not have."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

LABELS = ("L4", "T4", "GeForce-RTX-4090")


@dataclass
class Nodes:
    """A head without cores, and a node with one core per label. `stores`: where each has one of its
    own, of which it makes use where no folder is shared."""

    fake: Any
    client_port: int
    stores: Path
    by_label: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return str(self.fake.address)

    def add(self, label: str) -> None:
        self.by_label[label] = self.fake.add_node(
            num_cpus=1,
            num_gpus=1,
            labels={"ray.io/accelerator-type": label},
            object_store_memory=80 << 20,
            env_vars={"OPTKIT_CACHE": str(self.stores / label)},
        )

    def kill(self, label: str) -> None:
        """As a power cut would; a new node takes its place."""
        self.fake.remove_node(self.by_label[label], allow_graceful=False)
        self.add(label)


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20,
            "ray_client_server_port": port}  # fmt: skip
    fake = Cluster(initialize_head=True, head_node_args=head)
    found = Nodes(fake, port, tmp_path_factory.mktemp("stores"))
    for label in LABELS:
        found.add(label)
    yield found
    ray.shutdown()
    found.fake.shutdown()
