"""Text generation: it shows that the artifact of a language model works, and measures its speed.

    generated = optkit.generate(optkit.load(path), ["def main("], max_new_tokens=64)
    generated.texts[0].text, generated.decode.tokens / generated.decode.seconds

The artifact has the graph with its key-value cache, or the two graphs of an encoder-decoder, the
tokenizer, and the special tokens in config.json and generation_config.json. Generation is greedy
unless a Sampling is given.

    continued   a decoder continues a prompt        encoded    output of an encoder-decoder
    decoding    the loop over the graph             starting   the first tokens of an output
    sampling    the choice of the next token        tokenization  text to tokens and back
    speculation several tokens per run              drafters   tokens that may come next
    acceptance  those that the text keeps           draft_length  how many are drafted
    cached_text one text in the cache of a decoder
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from optkit.facts.errors import UsageError
from optkit.ground.artifact import Artifact, SessionArguments
from optkit.satellites.generation import continued, encoded
from optkit.satellites.generation.decoding import Pace
from optkit.satellites.generation.encoded import Recording
from optkit.satellites.generation.generated_texts import GenerationResult, SpeculationResult
from optkit.satellites.generation.sampling import Sampling
from optkit.satellites.generation.speculation import Speculation

__all__ = [
    "GenerationResult",
    "Pace",
    "Recording",
    "Sampling",
    "Speculation",
    "SpeculationResult",
    "generate",
]


def generate(
    artifact: Artifact,
    prompts: Sequence[str] = (),
    *,
    audio: Sequence[Recording] = (),
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    speculation: Speculation | None = None,
    heard: Callable[[int, str], None] = lambda row, text: None,
    **options: Unpack[SessionArguments],
) -> GenerationResult:
    """Run all prompts in one batch. A decoder continues them; an encoder-decoder writes a text for
    each prompt, or for each recording in `audio`: a WAV file, or float32 [samples] at the rate of
    the model.

    heard(row, text): called with each new piece of text; for a decoder first with the prompts,
    after all were checked. speculation: a decoder writes the same texts with fewer runs, one text
    after the other. options: for the sessions (e.g. threads).

    Raises UsageError (no prompt, one of the wrong kind, or speculation with an encoder-decoder),
    InputRefused (no language model, no tokenizer, a prompt without tokens, one that is longer than
    the model takes, or a draft model with another tokenizer), and the IntegrityError and
    ToolchainMissing of `session`.
    """
    if not (prompts or audio) or max_new_tokens < 1:
        raise UsageError(
            "nothing to generate",
            where=str(artifact.path),
            hint="give a prompt, and at least one new token",
        )
    artifact.verify()  # before its tokenizer is read, and anything is said
    if artifact.manifest.parts:
        if speculation is not None:
            raise UsageError(
                "speculative decoding is for decoders, and this is an encoder-decoder",
                where=str(artifact.path),
                hint="leave speculation out",
            )
        return encoded.generate(artifact, prompts, audio, max_new_tokens, sampling, heard, options)
    if audio:
        raise UsageError(
            "this model continues text and does not take audio",
            where=str(artifact.path),
            hint="give a prompt",
        )
    return continued.generate(
        artifact, prompts, max_new_tokens, sampling, speculation, heard, options
    )
