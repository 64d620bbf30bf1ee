"""A graph whose inputs and outputs are bound to the memory of a device."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Lock

from optkit.craft.backends.feed_checks import check_feed
from optkit.craft.backends.ort_objects import Binding, NativeOptions, Value
from optkit.craft.backends.ort_session import OrtSession, Providers, held, library, run_bound
from optkit.facts.errors import Impossible, ToolchainMissing
from optkit.facts.tensors import Feed

# a provider that compiles ahead has put what multiplies into EPContext
_MULTIPLIES = re.compile("Conv|MatMul|Gemm|Attention|LSTM|GRU|EPContext")


class BoundSession(OrtSession):
    """A graph on a device, to which its inputs and outputs are bound. `records`: kernel launches
    are recorded in the first run and replayed, with buffers that keep their addresses."""

    def __init__(
        self,
        model: Path,
        options: NativeOptions,
        providers: Providers,
        device: str,
        *,
        records: bool,
    ) -> None:
        super().__init__(model, options, providers, device)
        self._first = providers[0][0]
        self._fixed: dict[str, Value] = {}
        self._binding: Binding | None = None
        self._turn = Lock()  # threads share the bound values
        sizes = [size for info in (*self.inputs, *self.outputs) for size in info.shape]
        if records and not all(isinstance(size, int) for size in sizes):
            raise Impossible(
                "kernel launches can be recorded in a CUDA graph only if every size is fixed",
                where=str(model),
            )
        self._records = records

    def run(self, feed: Feed) -> Feed:
        """Outputs by name. Raises InputRefused, with the name of the input, for a feed that does
        not fit."""
        check_feed(feed, self.inputs)
        with self._turn:
            if self._records and self._binding is not None:
                binding = self._binding
                for name, array in feed.items():
                    self._fixed[name].update_inplace(array)
            else:
                self._binding = binding = self._bound(feed)
            run_bound(self._session, binding, self._where)
            found = binding.copy_outputs_to_cpu()
        return dict(zip((info.name for info in self.outputs), found, strict=True))

    def assigned(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The provider, and (name, operator) of the nodes, for each group that it runs as one."""
        groups = self._session.get_provider_graph_assignment_info()
        return [(g.ep_name, [(n.name, n.op_type) for n in g.get_nodes()]) for g in groups]

    def verify(self) -> None:
        """Raise ToolchainMissing if nodes that multiply (if there are none: any nodes) are not
        assigned to the provider of this backend."""
        nodes = [(ep, name, op) for ep, group in self.assigned() for name, op in group]
        counted = [row for row in nodes if _MULTIPLIES.search(row[2])] or nodes
        elsewhere = [row for row in counted if row[0] != self._first]
        if elsewhere:
            ep, name, op = elsewhere[0]
            raise ToolchainMissing(
                f"{len(elsewhere)} of {len(counted)} nodes that multiply run on {ep} instead of "
                f"{self._first}",
                where=f"{self._where}: node {name!r} ({op})",
                hint="the figures would be those of the other provider",
            )

    def _bound(self, feed: Feed) -> Binding:
        binding = self._session.io_binding()
        self._fixed = {name: held(array, self._device) for name, array in feed.items()}
        for name, value in self._fixed.items():
            binding.bind_ortvalue_input(name, value)
        for info in self.outputs:
            if self._records:
                made = library().OrtValue.ortvalue_from_shape_and_type(
                    list(info.shape), info.dtype, self._device, 0
                )
                binding.bind_ortvalue_output(info.name, made)
            else:
                binding.bind_output(info.name, self._device)
        return binding
