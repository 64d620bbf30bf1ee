"""A figure of the result: bytes that the engine saves."""

from __future__ import annotations

from tests.probes.probe import Edit, Probe

RESULT, COMPOSED = "optkit/facts/documents/result.py", "optkit/show/report/build_result.py"
PROBE = Probe(
    "a figure in report and --json",
    3,
    (
        Edit(
            RESULT,
            "    baseline_bytes: Count | None = None\n    evidence",
            """    baseline_bytes: Count | None = None
    saved_bytes: Annotated[int | SkipJsonSchema[None], Field(exclude_if=absent)] = None
    evidence""",
        ),
        Edit(
            COMPOSED,
            "        baseline_bytes=other.engine.bytes,\n",
            """        baseline_bytes=other.engine.bytes,
        saved_bytes=other.engine.bytes - candidate.engine.bytes,
""",
        ),
        Edit(
            "optkit/show/report/worth.py",
            'much = f"{abs(change):.0%} ',
            'much = f"{size.saved_bytes:,} bytes or {abs(change):.0%} ',
        ),
    ),
)


def check() -> None:
    """It is in the JSON of the result and of the report, in their schemas, and in a sentence."""
    from optkit.facts import documents
    from optkit.facts.documents.result import Result
    from optkit.show.report.worth import resized
    from tests.report.conftest import build

    report = build()
    size = report["result"]["size"]
    assert size["saved_bytes"] == size["baseline_bytes"] - size["bytes"]
    for name in ("result", "report"):
        known = documents.schema(name)["$defs"]["EngineSize"]["properties"]  # type: ignore[index]
        assert "saved_bytes" in known  # type: ignore[operator]
    small = {**report["result"], "size": {**size, "bytes": 9, "saved_bytes": 1234}}
    assert "1,234 bytes or" in resized(Result.from_json(small))


if __name__ == "__main__":
    check()
