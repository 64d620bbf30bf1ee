"""A translation in the making: each flag with its answer, and the options of optkit so far."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import JsonValue

from optkit.facts.documents.translation import Fate, TranslatedFlag
from optkit.facts.errors import UsageError
from optkit.satellites.translation import flag_values
from optkit.satellites.translation.command_words import Word
from optkit.satellites.translation.tables import FlagRow, Tool

SHAPES = ("--shapes", "--min-shapes", "--opt-shapes", "--max-shapes")


@dataclass
class FlagAnswer:
    """One flag, and what becomes of it. `row` None: the tool's default, where a flag is missing."""

    text: str
    row: FlagRow | None = None
    value: str | None = None
    fate: Fate = "done"
    becomes: str | None = None
    reason: str | None = None
    remedy: str | None = None
    overridden_by: str | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        return () if self.row is None else self.row.flags

    def refuse(self, reason: str, remedy: str) -> None:
        self.fate, self.becomes, self.reason, self.remedy = "refused", None, reason, remedy

    def ignore(self, reason: str) -> None:
        self.fate, self.becomes, self.reason, self.remedy = "meaningless", None, reason, None

    def written(self) -> TranslatedFlag:
        return TranslatedFlag(
            flag=self.text,
            fate=self.fate,
            becomes=self.becomes,
            reason=self.reason,
            remedy=self.remedy,
            overridden_by=self.overridden_by,
        )


@dataclass(frozen=True)
class Setting:
    """A key of the recipe with its value, and the flag that sets it."""

    key: str
    value: JsonValue
    flag: str

    @property
    def yaml(self) -> str:
        """The value in one line of YAML."""
        if isinstance(self.value, str) and re.fullmatch(r"[A-Za-z_]\w*", self.value):
            return self.value
        return json.dumps(self.value, separators=(",", ":"))

    @property
    def text(self) -> str:
        """KEY=VALUE, for --set."""
        return f"{self.key}={self.yaml}"


@dataclass
class TranslationDraft:
    """given: the options that the user gave beside the command ("MODEL", "--precision", "--set
    KEY", …), which override those of the command. options: option → its value; keys: key of the
    recipe → its setting."""

    tool: Tool
    given: frozenset[str]
    entries: list[FlagAnswer] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Setting] = field(default_factory=dict)

    def read(self, words: Iterable[Word]) -> None:
        """Answer every flag by its row. Raises UsageError for a value of the wrong form."""
        seen: dict[str, FlagAnswer] = {}
        for word in words:
            entry = FlagAnswer(word.text, word.row, word.value)
            self.entries.append(entry)
            before = seen.setdefault(word.flag, entry)
            if before.value != word.value and not word.row.repeats:
                entry.refuse(f"it is given twice, before as {before.text}", "give it once")
                continue
            try:
                self._answer(entry, word.row)
            except flag_values.Refusal as refusal:
                entry.refuse(refusal.reason, refusal.remedy)
            except ValueError as error:
                hint = "correct the value; docs/how_to/from_tensorrt_10.md lists the flags"
                where = f"--{self.tool} {word.text}"
                raise UsageError(str(error), where=where, hint=hint) from None

    def of(self, *flags: str) -> list[FlagAnswer]:
        """The entries of these flags that are done."""
        return [e for e in self.entries if e.fate == "done" and set(flags) & set(e.flags)]

    def default(self, missing: str, becomes: str) -> None:
        """Record what the tool does without a flag."""
        self.entries.append(FlagAnswer(f"({missing})", becomes=becomes))

    def set_key(self, entry: FlagAnswer, key: str, value: JsonValue) -> None:
        """Set a key of the recipe, unless --set beside the command has it."""
        setting = Setting(key, value, entry.text)
        entry.becomes = f"--set {shlex.quote(setting.text)}"
        parts = key.split(".")
        for end in range(1, len(parts) + 1):
            option = f"--set {'.'.join(parts[:end])}"
            if option in self.given:
                entry.overridden_by = option
                return
        self.keys[key] = setting

    def set_option(self, entry: FlagAnswer, option: str, value: str) -> None:
        """Set an option of optkit, unless it is beside the command."""
        words = [option, value] if value else [option]
        entry.becomes = value if option == "MODEL" else shlex.join(words)
        rivals = {option}
        if option in SHAPES:
            rivals |= set(SHAPES) if option == "--shapes" else {"--shapes"}
        given = sorted(rivals & self.given)
        if given:
            entry.overridden_by = given[0]
        else:
            self.options[option] = value

    def _answer(self, entry: FlagAnswer, row: FlagRow) -> None:
        text = entry.value or ""
        if row.refused_values and re.fullmatch(row.refused_values, text, re.IGNORECASE):
            self._refused(entry, row)
            return
        if row.harmless is not None and re.fullmatch(row.harmless, text, re.IGNORECASE):
            entry.ignore(row.harmless_because)
            return
        value = _value(row, text)
        entry.reason = row.note
        if row.value == "boolean" and value is False:
            entry.ignore("it is off")
        elif row.key is not None:
            self.set_key(entry, row.key, value)
        elif row.option is not None:
            self._to_option(entry, row, text)
        elif row.precision is not None:
            entry.becomes = str(value) if row.precision == "*" else row.precision
        elif row.done is not None:
            entry.becomes = row.done
        elif row.meaningless is not None:
            entry.ignore(row.meaningless)
        else:
            self._refused(entry, row)

    def _to_option(self, entry: FlagAnswer, row: FlagRow, text: str) -> None:
        assert row.option is not None
        if row.value == "shapes":
            text = flag_values.written(flag_values.shapes(text))
            if not text:
                entry.ignore("a scalar has no sizes")
                return
        self.set_option(entry, row.option, "" if row.value in ("switch", "boolean") else text)

    def _refused(self, entry: FlagAnswer, row: FlagRow) -> None:
        assert row.refused is not None and row.remedy is not None
        if row.answered_by in self.given:
            entry.becomes, entry.overridden_by = row.answered_by, row.answered_by
        else:
            entry.refuse(row.refused, row.remedy)


def _value(row: FlagRow, text: str) -> JsonValue:
    """What the row's key is set to."""
    if row.value == "choice":
        return chosen_name(row, text)
    if row.value in flag_values.READERS:
        return flag_values.value(row.value, text)
    return row.constant if row.value == "switch" else text


def chosen_name(row: FlagRow, text: str) -> str:
    """optkit's name of a choice. Raises ValueError for an unknown one."""
    for name, ours in row.values.items():
        if name.lower() == text.lower():
            return ours
    raise ValueError(f"{text!r} is not one of {', '.join(row.values)}")
