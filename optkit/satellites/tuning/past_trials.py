"""The outcomes of trials in the store. A search that was killed, or that starts again with another
budget or seed, repeats none of them. Every save replaces the whole file atomically. A trial that
failed for lack of time or memory, or whose worker was killed, is not saved, because the next run
may have more of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optkit.facts import codec
from optkit.ground.recipe import Placement
from optkit.ground.store import Store, digest_json
from optkit.road import pipeline
from optkit.road.pipeline import Build
from optkit.road.steps.step_table import STEPS
from optkit.satellites.tuning.space import Candidate, CandidateTrial, Outcome, Space

_SCHEMA = "optkit.trials/v2"
_SETTINGS = ("quantization", "calibration", "inputs", "axes", "bench")


@dataclass
class PastTrials:
    """Outcomes by candidate, for one model, its samples, one target and these tools."""

    store: Store
    key: str
    outcomes: dict[Candidate, Outcome] = field(default_factory=dict)

    @classmethod
    def of(
        cls, build: Build, space: Space, placements: Mapping[str, Placement], store: Store
    ) -> PastTrials:
        """The outcomes in the store for this space. `build`: the model in the first precision."""
        inputs = ("fused", "calibration", "probe")
        entries = {name: digest for name, digest in build.digests.items() if name in inputs}
        recipe = build.job.recipe
        record = recipe.to_json()
        key = digest_json(
            {
                "trials": _SCHEMA,
                "entries": entries,
                "settings": [record[part] for part in _SETTINGS],
                "order": list(recipe.quantization.nodes),  # canonical JSON sorts keys
                "target": build.job.target.fingerprint(),
                "groups": [list(group.nodes) for group in space.groups],
                "placements": {
                    name: settings.model_dump(mode="json", exclude_none=True)
                    for name, settings in placements.items()
                },
                "steps": {name: step.version for name, step in STEPS.items()},
                "versions": pipeline.tool_versions(),
            }
        )
        saved = store.recall(key) or {}
        rows = saved.get("trials", []) if saved.get("schema") == _SCHEMA else []
        trials = codec.from_json(tuple[CandidateTrial, ...], rows)
        return cls(store, key, {trial.candidate: trial.outcome for trial in trials})

    def keep(self, trial: CandidateTrial) -> None:
        """Save the outcome with all others, unless another attempt may have another outcome."""
        if trial.outcome.transient or self.outcomes.get(trial.candidate) == trial.outcome:
            return
        self.outcomes[trial.candidate] = trial.outcome
        rows = [codec.to_json(CandidateTrial(*row)) for row in self.outcomes.items()]
        self.store.remember(self.key, {"schema": _SCHEMA, "trials": rows})
