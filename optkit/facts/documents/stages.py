"""What the single stages wrote: `optkit export`, `fuse`, `quantize`, `compile`."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field

from optkit.facts.assignment import QuantizedProducts
from optkit.facts.documents.record import Object, Record, Rows, said
from optkit.facts.documents.result import CalibrationCheck
from optkit.facts.documents.rewrites import Rewrite, rewrites

S = TypeVar("S")


class StageFiles(Record, Generic[S]):
    """What a stage wrote into a new folder."""

    schema_: S = Field(alias="schema")
    status: Literal["ok"]
    out: Annotated[str, said("The folder.")]
    files: Annotated[Rows[str], said("Their names in the folder.")]
    notes: Annotated[Rows[str], said("One for each rewrite that was applied or declined.")]
    details: Annotated[Object, said("The facts of the step, as in details.json.")]
    calibration: CalibrationCheck | None = None
    quantized: QuantizedProducts | None = None

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """What rules did, in the order of the log; empty of a stage without rules."""
        return rewrites(self.details)


ExportFiles = StageFiles[Literal["optkit.export/v1"]]
FuseFiles = StageFiles[Literal["optkit.fuse/v1"]]
QuantizeFiles = StageFiles[Literal["optkit.quantize/v1"]]
CompileFiles = StageFiles[Literal["optkit.compile/v1"]]
