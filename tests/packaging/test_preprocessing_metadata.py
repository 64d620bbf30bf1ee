"""What the metadata says about preprocessing: what is known, and nothing else."""

from __future__ import annotations

import json

import pytest

from optkit.ground.recipe import Recipe
from optkit.road.packaging.preprocessing_metadata import preprocessing

PLAIN = Recipe.from_dict({"name": "net"})


def test_nothing_is_claimed_if_nothing_is_known() -> None:
    assert preprocessing({}, PLAIN) is None
    own = {"name": "net", "calibration": {"source": "digits", "args": {"size": 8}}}
    assert preprocessing({"config.json": b"{}"}, Recipe.from_dict(own)) is None


@pytest.mark.parametrize("damaged", [b"", b"[1]", b"{", b'"x"'])
def test_a_damaged_file_of_the_model_says_nothing(damaged: bytes) -> None:
    assert preprocessing({"preprocessor_config.json": damaged}, PLAIN) is None


def test_the_processor_and_the_tokenizer_of_the_model_are_named() -> None:
    processor = {
        "image_processor_type": "ViTImageProcessor", "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25], "do_normalize": True, "size": {"height": 8, "width": 8},
        "_commit": "x",
    }  # fmt: skip
    tokenizer = {"tokenizer_class": "BertTokenizer", "name_or_path": "/home/somebody/model"}
    found = preprocessing(
        {
            "preprocessor_config.json": json.dumps(processor).encode(),
            "tokenizer_config.json": json.dumps(tokenizer).encode(),
        },
        PLAIN,
    )
    assert found is not None
    processor.pop("_commit")
    assert json.loads(found) == {
        "processor": processor, "tokenizer": {"tokenizer_class": "BertTokenizer"}
    }  # fmt: skip


def test_the_numbers_of_the_recipe_are_named_without_paths() -> None:
    args = {"path": "pictures", "mean": 0.5, "std": [0.1, 0.2, 0.3], "size": 224}
    recipe = {"name": "net", "calibration": {"source": "images", "args": args}}
    found = preprocessing({}, Recipe.from_dict(recipe))
    assert found is not None
    assert json.loads(found) == {
        "pictures": {"mean": 0.5, "std": [0.1, 0.2, 0.3], "size": 224}
    }  # fmt: skip
