"""`optkit generate`: generates text with the artifact of a language model, and measures its
speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.documents.generated_text import GENERATE, DraftCounts, PhasePace, TextGeneration
from optkit.facts.errors import UsageError
from optkit.ground.progress.terminal import stderr
from optkit.satellites.generation import (
    GenerationResult,
    Pace,
    Sampling,
    Speculation,
    SpeculationResult,
)
from optkit.satellites.generation import generate as continue_
from optkit.verbs import api
from optkit.verbs.cli import command_output
from optkit.verbs.cli.command_output import Output


@dataclass(frozen=True)
class SamplingChoice:
    """The options of sampling. If one of them is given, the text is sampled."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None

    def sampling(self) -> Sampling | None:
        """The options of sampling; None for greedy decoding."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return Sampling(**given) if given else None


@dataclass(frozen=True)
class Drafts:
    """The options of speculative decoding."""

    prompt_lookup: bool
    draft_model: Path | None
    draft_tokens: int | None

    def speculation(self, trusted: bool) -> Speculation | None:
        """What they ask for; None for plain decoding. Raises UsageError if they contradict."""
        if not self.prompt_lookup and self.draft_model is None:
            if self.draft_tokens is not None:
                raise UsageError(
                    "--draft-tokens drafts nothing alone",
                    where="command line",
                    hint="give --prompt-lookup, or --draft ARTIFACT",
                )
            return None
        if self.draft_model is None:
            return Speculation(tokens=self.draft_tokens)
        if self.prompt_lookup:
            raise UsageError(
                "--prompt-lookup and --draft are two sources of drafts",
                where="command line",
                hint="give one of them",
            )
        return Speculation(api.load(self.draft_model, trusted=trusted), self.draft_tokens)


def generate(
    artifact: Path,
    prompts: tuple[str, ...],
    files: tuple[Path, ...],
    audio: tuple[str, ...],
    max_new_tokens: int,
    threads: int | None,
    trusted: bool,
    adapter: str | None,
    drawing: SamplingChoice,
    drafts: Drafts,
    output: Output,
) -> None:
    texts = [*prompts, *(_text(file) for file in files)]
    if not texts and not audio:
        hint = "give --prompt or --prompt-file, or --audio for a speech model"
        raise UsageError("there is no prompt", where="command line", hint=hint)
    rows = len(texts) + len(audio)
    streaming = not output.json and rows == 1
    with (
        api.load(artifact, trusted=trusted) as loaded,
        _told(output, rows * max_new_tokens) as tell,
    ):
        made = continue_(
            loaded,
            texts,
            audio=audio,
            max_new_tokens=max_new_tokens,
            sampling=drawing.sampling(),
            speculation=drafts.speculation(trusted),
            threads=threads,
            adapter=adapter,
            heard=lambda row, text: command_output.put(text, end="") if streaming else tell(),
        )
    if output.json:
        command_output.put_json(_document(artifact, made, adapter))
        return
    if streaming:
        command_output.put("")
    for text in () if streaming else made.texts:
        command_output.put(f"{text.prompt if made.encode is None else ''}{text.text}\n")
    if not output.quiet:
        stderr().print(_pace(made), markup=False)


@contextmanager
def _told(output: Output, most: int) -> Iterator[Callable[[], None]]:
    """Shows the number of generated tokens, if texts are not printed while they are generated."""
    ears, written = output.terminal(), 0

    def tell() -> None:
        nonlocal written
        if not written:
            ears.start("generate", "generate")
        written += 1
        ears.progress(f"{written} tokens of {most} at most", min(1.0, written / most))

    try:
        yield tell
    finally:
        ears.close()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # without a mark of byte order
    except UnicodeDecodeError as error:
        raise UsageError(
            "not UTF-8 text", where=str(file), hint="save it as UTF-8, for example with iconv"
        ) from error


def _document(artifact: Path, made: GenerationResult, adapter: str | None) -> TextGeneration:
    return TextGeneration(
        schema=GENERATE,
        status="ok",
        artifact=str(artifact),
        adapter=adapter or None,
        backend=made.backend,
        note=made.note,
        texts=made.texts,
        encode=None if made.encode is None else _phase(made.encode, made),
        prefill=_phase(made.prefill, made),
        decode=_phase(made.decode, made),
        cache=made.cache,
        speculation=None if made.speculation is None else _counts(made.speculation),
    )


def _counts(done: SpeculationResult) -> DraftCounts:
    return DraftCounts(
        method=done.method,
        drafted=done.drafted,
        accepted=done.accepted,
        acceptance_rate=_rounded(done.acceptance_rate),
        target_runs=done.runs,
        tokens_per_run=_rounded(done.tokens_per_run),
        plain_runs=done.plain.tokens,
        plain_tokens_per_second=_rounded(
            done.plain.tokens / done.plain.seconds if done.plain.tokens else None
        ),
        gain=_rounded(done.gain),
    )


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _phase(pace: Pace, made: GenerationResult) -> PhasePace:
    return PhasePace(
        evidence=made.evidence,
        tokens=pace.tokens,
        seconds=round(pace.seconds, 6),
        tokens_per_second=round(pace.tokens / pace.seconds, 2) if pace.tokens else None,
    )


def _pace(made: GenerationResult) -> str:
    phases = [
        f"{name} {pace.tokens} tokens, {pace.tokens / pace.seconds:.1f}/s"
        for name, pace in (
            ("encode", made.encode),
            ("prefill", made.prefill),
            ("decode", made.decode),
        )
        if pace and pace.tokens
    ]
    cache = f"cache {made.cache.format}, {made.cache.token_bytes:,} bytes per token"
    if made.cache.window is not None:
        cache += f", cut to the window of {made.cache.window} tokens"
    note = f" ({made.note})" if made.note else ""
    drafts = f"; {_drafted(made.speculation)}" if made.speculation else ""
    return f"{made.evidence} with {made.backend}: {'; '.join(phases)}; {cache}{drafts}{note}"


def _drafted(done: SpeculationResult) -> str:
    parts = [f"{done.method} {done.accepted} of {done.drafted} drafted tokens accepted"]
    if done.tokens_per_run is not None:
        parts.append(f"{done.tokens_per_run:.2f} tokens per run")
    if done.gain is not None:
        parts.append(f"{done.gain:.2f} times as fast as its runs without a draft")
    return ", ".join(parts)
