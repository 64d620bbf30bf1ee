"""Bad calibration sets are recognised by kind, and good sets cause no finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from optkit.facts.errors import InputRefused
from tests.calibration import sets
from tests.calibration.sets import Pair

RNG = np.random.default_rng


def pictures(x: np.ndarray, other: np.ndarray | None = None) -> Pair:
    return Pair({"image": x}, None if other is None else {"image": other})


def rows(x: np.ndarray, other: np.ndarray | None = None) -> Pair:
    return Pair({"x": x}, None if other is None else {"x": other})


def texts(calibration: dict[str, np.ndarray], other: dict[str, np.ndarray] | None = None) -> Pair:
    return Pair(calibration, other, {"input_ids": sets.vocabulary()})


def functions(
    part: str = "training", count: int | None = None, length: int = 64
) -> dict[str, np.ndarray]:
    return sets.encoded(sets.functions(part)[:count], length)


def beside_tokens(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What an encoder takes beside its tokens."""
    ids = feed["input_ids"]
    places = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    return {**feed, "token_type_ids": np.zeros_like(ids), "position_ids": places}


def normalized(x: np.ndarray) -> np.ndarray:
    return (x - sets.MEAN) / sets.STD


def chosen(count: int, seed: int) -> np.ndarray:
    x = sets.training()
    return x[RNG(seed).choice(len(x), count, replace=False)]


def augmented(seed: int) -> np.ndarray:
    """Each moved by a pixel at most, with other contrast and some noise."""
    moves = RNG(seed).integers(-1, 2, 128)
    x = np.stack(
        [np.roll(one, by, axis=2) for one, by in zip(chosen(128, seed), moves, strict=True)]
    )
    contrast = RNG(seed).uniform(0.7, 1.2, (len(x), 1, 1, 1))
    return (x * contrast + RNG(seed).normal(0, 0.02, x.shape)).astype(np.float32).clip(0, 1.2)


CLEAN: dict[str, Callable[[], Pair]] = {
    "digits": lambda: pictures(sets.training()[:256], sets.held_out()),
    "digits, all": lambda: pictures(sets.training(), sets.held_out()),
    "digits, no evaluation": lambda: pictures(sets.training()[:256]),
    "digits, 8 samples": lambda: pictures(chosen(8, 1), sets.held_out()),
    "digits, 8 others": lambda: pictures(chosen(8, 2), sets.held_out()[:8]),
    "digits, 16 samples": lambda: pictures(chosen(16, 3), sets.held_out()),
    "digits, 32 samples": lambda: pictures(chosen(32, 4), sets.held_out()),
    "digits, other seed": lambda: pictures(chosen(128, 5), sets.held_out()),
    "digits, augmented": lambda: pictures(augmented(6), sets.held_out()),
    "digits, augmented again": lambda: pictures(augmented(7), sets.held_out()),
    "digits, five classes": lambda: pictures(
        sets.digits()[0][0::2][sets.digits()[1][0::2] < 5], sets.held_out()
    ),
    "digits, evaluation is small": lambda: pictures(sets.training()[:256], sets.held_out()[:8]),
    "digits in [-1, 1]": lambda: pictures(sets.training() * 2 - 1, sets.held_out() * 2 - 1),
    "digits, normalized": lambda: pictures(
        (sets.training() - 0.3) / 0.37, (sets.held_out() - 0.3) / 0.37
    ),
    "digits, some blank": lambda: pictures(
        np.concatenate([sets.training()[:60], np.zeros((3, 1, 8, 8), np.float32)]), sets.held_out()
    ),
    "photographs": lambda: pictures(sets.photographs(0), sets.photographs(1)),
    "photographs, 8": lambda: pictures(sets.photographs(2, 8), sets.photographs(3, 16)),
    "photographs, normalized": lambda: pictures(
        normalized(sets.photographs(4)), normalized(sets.photographs(5))
    ),
    "photographs, turned over": lambda: pictures(
        sets.photographs(6)[..., ::-1].copy(), sets.photographs(7)
    ),
    "photographs, one place": lambda: pictures(
        sets.photographs(8, of=(0,)), sets.photographs(9, of=(0,))
    ),
    "photographs, warm": lambda: pictures(sets.coloured(0), sets.coloured(1)),
    "iris": lambda: rows(*sets.table("iris")),
    "wine": lambda: rows(*sets.table("wine")),
    "wine, raw": lambda: rows(*sets.raw_table("wine")),
    "breast cancer": lambda: rows(*sets.table("breast_cancer")),
    "breast cancer, raw": lambda: rows(*sets.raw_table("breast_cancer")),
    "diabetes": lambda: rows(*sets.table("diabetes")),
    "linnerud, raw": lambda: rows(*sets.raw_table("linnerud")),
    "recordings": lambda: rows(sets.tones(0), sets.tones(1)),
    "recordings, louder": lambda: rows(sets.tones(2, 16, 1.8), sets.tones(3)),
    "functions": lambda: texts(functions(), functions("held-out")),
    "functions, 16": lambda: texts(functions(count=16), functions("held-out")),
    "functions, with kinds and places": lambda: replace(
        texts(beside_tokens(functions()), beside_tokens(functions("held-out"))),
        tables={"input_ids": sets.vocabulary(), "token_type_ids": 2, "position_ids": 512},
    ),
    "functions, short": lambda: texts(functions(length=32), functions("held-out")),
    "functions, alone": lambda: texts(functions(count=64)),
    "functions, packed": lambda: texts(
        {name: array[:, :20] for name, array in functions().items()}
    ),
    "functions, one unmasked": lambda: texts({"input_ids": functions()["input_ids"][:, :16]}),
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_sound_set_raises_no_alarm(name: str) -> None:
    assert [str(finding) for finding in CLEAN[name]().findings()] == []


def with_outlier(x: np.ndarray, value: float = 1e4) -> np.ndarray:
    x = x.copy()
    x[(5,) + (0,) * (x.ndim - 1)] = value
    return x


def reshaped(x: np.ndarray) -> np.ndarray:
    """Channels last, taken for channels first."""
    return x.transpose(0, 2, 3, 1).reshape(x.shape)


def shuffled(x: np.ndarray) -> np.ndarray:
    order = RNG(0).permutation(x[0].size)
    return x.reshape(len(x), -1)[:, order].reshape(x.shape)


def repeated(x: np.ndarray, noise: float = 0.0) -> np.ndarray:
    many = np.repeat(x[:1], 64, axis=0)
    return (many + RNG(0).normal(0, noise, many.shape)).astype(np.float32)


def one_class(number: int) -> np.ndarray:
    images, labels = sets.digits()
    return images[0::2][labels[0::2] == number]


def dead_channel(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[:, 1] = 0
    return x


def held() -> np.ndarray:
    return sets.held_out()


def train() -> np.ndarray:
    return sets.training()[:256]


def random_ids(high: int) -> dict[str, np.ndarray]:
    ids = RNG(0).integers(0, high, (64, 64))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def with_mask(mask: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    found = functions()
    return {**found, "attention_mask": mask(found["attention_mask"])}


BAD: dict[str, tuple[str, Callable[[], Pair]]] = {
    "times 255": ("scale", lambda: pictures(train() * 255, held())),
    "over 255": ("scale", lambda: pictures(train() / 255, held())),
    "not normalized": (
        "scale", lambda: pictures(sets.photographs(0), normalized(sets.photographs(1)))
    ),
    "normalized twice": (
        "scale", lambda: pictures(normalized(normalized(sets.photographs(0))),
                                  normalized(sets.photographs(1)))
    ),
    "[-1, 1] for [0, 1]": ("sign", lambda: pictures(train() * 2 - 1, held())),
    "[0, 1] for [-1, 1]": ("sign", lambda: pictures(train(), held() * 2 - 1)),
    "cut at zero": (
        "sign", lambda: pictures(((train() - 0.3) / 0.37).clip(0), (held() - 0.3) / 0.37)
    ),
    "moved": ("shift", lambda: pictures(train() + 2, held() + 1)),
    "cast to integers": (
        "collapsed", lambda: pictures(train().round(), held())
    ),
    "cut at a half": ("narrow", lambda: pictures(train().clip(0, 0.5), held())),
    "too wide": ("wide", lambda: pictures(
        np.concatenate([with_outlier(train()[:8], 30), with_outlier(train()[8:16], 40)]), held())),
    "one outlier": ("outlier", lambda: pictures(with_outlier(train()), held())),
    "one outlier, alone": ("outlier", lambda: pictures(with_outlier(train()))),
    "one outlier in a table": (
        "outlier", lambda: rows(with_outlier(sets.table("wine")[0]), sets.table("wine")[1])
    ),
    "half of them times 255": ("mixed", lambda: pictures(
        np.concatenate([train()[:128], train()[128:] * 255]))),
    "all zeros": ("constant", lambda: pictures(np.zeros_like(train()), held())),
    "all ones": ("constant", lambda: pictures(np.ones_like(train()))),
    "a third blank": ("constant", lambda: pictures(
        np.concatenate([train()[:128], np.zeros((64, 1, 8, 8), np.float32)]))),
    "one sample": ("duplicates", lambda: pictures(repeated(train()), held())),
    "four samples": ("duplicates", lambda: pictures(np.tile(train()[:4], (16, 1, 1, 1)))),
    "one sample and noise": ("alike", lambda: pictures(repeated(train(), 0.003))),
    "one class": ("other", lambda: pictures(one_class(0), held())),
    "another class": ("other", lambda: pictures(one_class(1), held())),
    "height and width swapped": ("order", lambda: pictures(train().swapaxes(2, 3), held())),
    "inverted": ("shift", lambda: pictures(1 - train(), held())),
    "noise": ("noise", lambda: pictures(RNG(0).random((64, 3, 32, 32), np.float32))),
    "normal noise": ("noise", lambda: pictures(
        RNG(0).standard_normal((64, 1, 28, 28)).astype(np.float32))),
    "pixels shuffled": ("noise", lambda: pictures(shuffled(sets.photographs(0)))),
    "features shuffled": ("order", lambda: rows(shuffled(sets.tones(0)), sets.tones(1))),
    "reshaped": ("interleaved", lambda: pictures(reshaped(sets.photographs(0)))),
    "reshaped, compared": ("order", lambda: pictures(
        reshaped(train().repeat(3, 1)), held().repeat(3, 1))),
    "BGR": ("swapped", lambda: pictures(sets.coloured(0)[:, ::-1], sets.coloured(1))),
    "dead channel": ("dead", lambda: pictures(dead_channel(sets.photographs(0)),
                                              sets.photographs(1))),
    "dead column": ("dead", lambda: rows(dead_channel(sets.table("wine")[0]),
                                         sets.table("wine")[1])),
    "one token": ("one token", lambda: texts(
        {"input_ids": np.full((32, 64), 7), "attention_mask": np.ones((32, 64), np.int64)})),
    "all padding": ("masked", lambda: texts(with_mask(np.zeros_like))),
    "mask turned round": ("one token", lambda: texts(with_mask(lambda mask: 1 - mask))),
    "mask of 255": ("mask", lambda: texts(with_mask(lambda mask: mask * 255))),
    "padding not masked": ("padding", lambda: texts(
        {**functions(length=256), "attention_mask": np.ones((198, 256), np.int64)})),
    "random tokens": ("random tokens", lambda: texts(random_ids(sets.vocabulary()))),
    "bytes as tokens": ("vocabulary", lambda: replace(
        texts(random_ids(250)), tables={"input_ids": 30000})),
    "another tokenizer": ("other tokens", lambda: texts(
        {**functions(), "input_ids": sets.vocabulary() - 1 - functions()["input_ids"]},
        functions("held-out"))),
    "much too short": ("lengths", lambda: texts(
        {name: array[:, :5] for name, array in functions().items()},
        functions("held-out"))),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_set_is_reported_by_kind(name: str) -> None:
    kind, made = BAD[name]
    findings = made().findings()
    assert kind in [finding.kind for finding in findings], [str(f) for f in findings]


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    found = functions()
    found["input_ids"][3, 2] = sets.vocabulary()
    with pytest.raises(InputRefused, match=f"token is {sets.vocabulary()}") as told:
        texts(found).findings()
    assert "sample 3" in str(told.value.where)
