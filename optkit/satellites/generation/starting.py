"""The first tokens of an encoder-decoder's output, and tokens that it never writes, from
generation_config.json.

    decoder_start_token_id              the first token that the decoder reads
    forced_decoder_ids                  the tokens after it (Whisper): [[1, 50259], [2, 50359]]
    language, task, lang_to_id,         the same in newer files; without a given language, the most
    task_to_id, no_timestamps_token_id  likely language token after the first token is used
    forced_bos_token_id                 the first token that is written (BART)
    suppress_tokens                     never written; begin_suppress_tokens: not as the first

Source: transformers' `generate`, for Whisper its `_retrieve_init_tokens`. Beams, penalties and
lengths in the file are ignored: generation is greedy or sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np

from optkit.facts.codec import from_json
from optkit.facts.errors import InputRefused
from optkit.ground.data import reading
from optkit.satellites.generation.decoding import Choose

_TASK = "transcribe"
_READ = ("decoder_start_token_id", "bos_token_id", "forced_decoder_ids")


@dataclass(frozen=True)
class _Said:
    """The settings of the two files, by the names that transformers uses."""

    decoder_start_token_id: int | None = None
    bos_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_decoder_ids: tuple[tuple[int, int | None], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    language: str | None = None
    lang_to_id: Mapping[str, int] = field(default_factory=dict)
    task: str | None = None
    task_to_id: Mapping[str, int] = field(default_factory=dict)
    no_timestamps_token_id: int | None = None
    return_timestamps: bool = False

    @classmethod
    def of(cls, *files: Mapping[str, object]) -> Self:
        """A later file overrides an earlier one; null overrides nothing."""
        names = {field.name for field in fields(cls)}
        said = {name: value for file in files for name, value in file.items() if value is not None}
        return from_json(cls, {name: said[name] for name in names & said.keys()})


@dataclass(frozen=True)
class DecoderStart:
    """`read`: the tokens that the decoder reads first; None is the place of the language token,
    which is chosen among `languages`. The other fields are token ids."""

    read: tuple[int | None, ...]
    languages: tuple[int, ...] = ()
    forced: int | None = None
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, config: Mapping[str, object], generation: Mapping[str, object], where: str
    ) -> DecoderStart:
        """The start from generation_config.json. If that file is missing, from config.json; the
        tokens that are read first may also be in config.json. Raises InputRefused if no file names
        the first token, or if the language is unknown."""
        also = config if not generation else {n: config[n] for n in _READ if n in config}
        said = _Said.of(also, generation)
        first = said.decoder_start_token_id
        first = said.bos_token_id if first is None else first
        if not isinstance(first, int):
            raise InputRefused(
                "the decoder's start token is not known",
                where=where,
                hint="set decoder_start_token_id in the model's generation_config.json",
            )
        read = _read(first, said, where)
        return cls(
            tuple(token for token in read if token is not None or said.lang_to_id),
            tuple(said.lang_to_id.values()),
            said.forced_bos_token_id,
            said.suppress_tokens,
            said.begin_suppress_tokens,
        )

    def choosing(self, choose: Choose) -> Choose:
        """`choose` among the tokens that may be written, for the text of one batch."""
        started = False

        def choose_allowed(logits: np.ndarray) -> np.ndarray:
            nonlocal started
            scores = logits.copy()
            scores[:, list(self.never)] = -np.inf
            if not started:
                scores[:, list(self.never_first)] = -np.inf
                if self.forced is not None:
                    scores[:] = -np.inf
                    scores[:, self.forced] = 0
            started = True
            return choose(scores)

        return choose_allowed


def only(scores: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """Scores with which only this token can be chosen."""
    kept = np.full_like(scores, -np.inf)
    kept[:, list(tokens)] = scores[:, list(tokens)]
    return kept


def _read(first: int, said: _Said, where: str) -> list[int | None]:
    language, languages = said.language, said.lang_to_id
    read: list[int | None] = [first]
    if language is None and said.task is None:
        read += _forced(said)
    known = None if language is None else _language(language, languages, where)
    if known is not None or (languages and (len(read) == 1 or read[1] is None)):
        read[1:2] = [known]
    read += _task(said, read)
    silent = said.no_timestamps_token_id
    if silent is not None and not said.return_timestamps and read[-1] != silent:
        read.append(silent)
    return read


def _task(said: _Said, read: Sequence[int | None]) -> list[int]:
    """The token of the task; beside a language the usual one, unless `read` has one already."""
    tasks = said.task_to_id
    if said.task is not None and said.task in tasks:
        return [tasks[said.task]]
    lacking = said.language is not None and not set(tasks.values()) & set(read)
    return [tasks[_TASK]] if lacking and _TASK in tasks else []


def _forced(said: _Said) -> Iterator[int | None]:
    """The tokens after the first one in older files; a language or a task replaces them."""
    forced = dict(said.forced_decoder_ids)
    place = 1
    while place in forced:
        yield forced[place]
        place += 1


def _language(name: str, languages: Mapping[str, int], where: str) -> int:
    """The token of a language, given as "<|en|>", "en" or "english"."""
    whisper = reading.optional("transformers.models.whisper.tokenization_whisper", "hf")
    code = whisper.TO_LANGUAGE_CODE.get(name.lower(), name.lower())
    for token in (name.lower(), f"<|{code}|>"):
        if token in languages:
            return languages[token]
    raise InputRefused(
        f"generation_config.json has no token for the language {name!r}",
        where=where,
        hint=f"it knows {', '.join(sorted(languages)[:8]) or 'none'}",
    )
