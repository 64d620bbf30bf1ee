"""What the flags of a command mean together, and what options beside it change."""

from __future__ import annotations

import pytest

from optkit.facts.errors import UsageError
from optkit.satellites.translation import Tool, ToolCommand, TranslatedCommand, translate


def translated(tool: Tool, command: str, *given: str) -> TranslatedCommand:
    made = translate(ToolCommand(**{tool: command}), frozenset(given))
    assert made is not None
    return made


def fates(tool: Tool, command: str, *given: str) -> dict[str, str]:
    return {f.flag: f.fate for f in translated(tool, command, *given).account.flags}


@pytest.mark.parametrize(
    ("command", "precision"),
    [("--fp16", "fp16"), ("--bf16", "bf16"), ("--int8", "int8"), ("--fp16 --int8", "int8"),
     ("--fp8 --fp16", "fp8"), ("--int4", "int4"), ("", "fp32"), ("--stronglyTyped", "fp32"),
     ("--best", None)],
)  # fmt: skip
def test_the_precision_of_trtexec(command: str, precision: str | None) -> None:
    assert translated("trtexec", command).precision == precision


def test_precisions_that_exclude_each_other() -> None:
    for command in ("--int8 --fp8", "--fp16 --bf16"):
        with pytest.raises(UsageError, match="one precision") as caught:
            translated("trtexec", command)
        assert command in str(caught.value.where) and "-p" in str(caught.value.hint)
        assert translated("trtexec", command, "--precision").precision is None
    assert fates("trtexec", "--bf16 --int8") == {"--bf16": "refused", "--int8": "done"}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("--optShapes=x:8x3", {"--min-shapes": "x:8x3", "--max-shapes": "x:8x3"}),
        ("--maxShapes=x:8x3", {"--min-shapes": "x:8x3", "--opt-shapes": "x:8x3"}),
        ("--minShapes=x:1x3 --maxShapes=x:8x3", {"--opt-shapes": "x:8x3"}),
        ("--minShapes=x:1x3 --optShapes=x:4x3", {"--max-shapes": "x:4x3"}),
        ("--shapes=x:4x3", {"--shapes": "x:4x3"}),
    ],
)
def test_missing_bounds_are_those_of_trtexec(command: str, options: dict[str, str]) -> None:
    made = translated("trtexec", command)
    assert made.options | options == made.options
    assert made.refusal() is None


def test_shapes_beside_a_range_are_what_is_measured() -> None:
    ranges = "--minShapes=x:1x3 --optShapes=x:8x3 --maxShapes=x:16x3"
    made = translated("trtexec", f"{ranges} --shapes=x:4x3")
    assert "--shapes" not in made.options
    assert [one.text for one in made.settings] == ["bench.batches=[4]"]
    assert fates("trtexec", f"{ranges} --shapes=x:4x2")["--shapes=x:4x2"] == "refused"


def test_precisions_of_layers_need_constraints_and_a_quantized_precision() -> None:
    layers = "--layerPrecisions=*head*:fp16"
    assert fates("trtexec", f"--int8 {layers}")[layers] == "meaningless"
    assert fates("trtexec", f"--fp16 --precisionConstraints=obey {layers}")[layers] == "refused"
    made = translated("trtexec", f"--int8 --precisionConstraints=prefer {layers}")
    assert [one.text for one in made.settings] == ['quantization.nodes={"*head*":"fp16"}']
    single = "--layerPrecisions=a:fp32"
    assert fates("trtexec", f"--int8 --precisionConstraints=obey {single}")[single] == "refused"


def test_an_option_beside_the_command_is_followed() -> None:
    command = "--onnx=a.onnx --fp16 --memPoolSize=workspace:64 --optShapes=x:8x3"
    beside = ("MODEL", "--precision", "--set compiler.workspace_bytes", "--shapes")
    made = translated("trtexec", command, *beside)
    assert made.options == {} and made.settings == ()
    assert [flag.overridden_by for flag in made.account.flags] == [
        "MODEL", "--precision", "--set compiler.workspace_bytes", "--shapes", "--shapes", "--shapes"
    ]  # fmt: skip
    whole = translated("trtexec", "--memPoolSize=workspace:64", "--set compiler", "--precision")
    assert whole.settings == ()


def test_a_refused_flag_is_answered_by_an_option() -> None:
    command = "--int8 --loadInputs=x:a.bin --best"
    refusal = translated("trtexec", command).refusal()
    assert refusal is not None and refusal.message.startswith("2 flags")
    assert translated("trtexec", command, "--calibration", "--precision").refusal() is None


@pytest.mark.parametrize(
    ("tool", "command", "told"),
    [
        ("trtexec", "--fpp16", "--fp16"),
        ("trtexec", "--onnx model.onnx", "value"),
        ("trtexec", "model.onnx", "not a flag"),
        ("trtexec", "--fp16=1", "no value"),
        ("trtexec", "--memPoolSize=workspace:4T", "not a number"),
        ("trtexec", "--hardwareCompatibilityLevel=turing+", "ampere"),
        ("trtexec", "--onnx='a", "quotation"),
        ("ultralytics", "imgsize=640", "imgsz"),
        ("ultralytics", "half=maybe", "True"),
        ("ultralytics", "imgsz=a,b", "height"),
        ("modelopt", "--calibration x", "--calibration"),
        ("modelopt", "--quantize_mode int8 extra", "belongs to no option"),
        ("modelopt", "--quantize_mode=int2", "int4"),
    ],
)
def test_a_command_that_cannot_be_read(tool: Tool, command: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        translated(tool, command)
    assert told in str(caught.value) and f"--{tool}" in str(caught.value.where)


def test_a_flag_given_twice_with_other_values_is_refused() -> None:
    told = translated("trtexec", "--fp16 --duration=3 --duration=3 --duration=5").account.flags
    assert [flag.fate for flag in told] == ["done", "done", "done", "refused"]


def test_one_tool_at_a_time() -> None:
    with pytest.raises(UsageError, match="one command"):
        translate(ToolCommand(trtexec="--fp16", modelopt=""), frozenset())
    assert translate(ToolCommand(), frozenset()) is None


def test_an_export_of_ultralytics() -> None:
    command = (
        "yolo export model=best.pt format=engine int8=True half=True dynamic=True batch=8 imgsz=640"
        " data=coco8.yaml workspace=3 nms=False"
    )
    made = translated("ultralytics", command, "MODEL", "--calibration")
    assert made.refusal() is None and made.options == {
        "--precision": "int8",
        "--min-shapes": "images:1x3x32x32",
        "--opt-shapes": "images:8x3x640x640",
        "--max-shapes": "images:8x3x1920x1920",
    }
    assert [one.text for one in made.settings] == [f"compiler.workspace_bytes={3 * 2**30}"]
    fixed = translated("ultralytics", "yolo detect export half imgsz=480,640 batch=2", "MODEL")
    assert fixed.options == {"--precision": "fp16", "--shapes": "images:2x3x480x640"}
    assert fates("ultralytics", "batch=2", "MODEL")["batch=2"] == "refused"
    assert translated("ultralytics", "quantize=8").precision == "int8"


def test_a_quantization_of_modelopt() -> None:
    command = (
        "python -m modelopt.onnx.quantization --onnx_path=a.onnx --quantize_mode fp8"
        " --calibration_data c.npz --calibration_method max --op_types_to_quantize Conv Gemm MatMul"
        r" --nodes_to_exclude /head.* /stem\.0$ --high_precision_dtype=fp16"
    )
    made = translated("modelopt", command)
    assert made.refusal() is None
    assert made.options == {"MODEL": "a.onnx", "--precision": "fp8", "--calibration": "c.npz"}
    assert [one.text for one in made.settings] == [
        "calibration.method=minmax",
        'quantization.nodes={"/head*":"fp16"}'.replace("}", ',"/stem?0":"fp16"}'),
    ]


def test_methods_of_modelopt_for_weights() -> None:
    for name, ours in (("awq_clip", "awq"), ("rtn_dq", "rtn")):
        made = translated("modelopt", f"--quantize_mode=int4 --calibration_method={name}")
        assert [one.text for one in made.settings] == [f"quantization.weights={ours}"]
    array = "--calibration_data_path c.npy"
    assert fates("modelopt", array)[array] == "refused"
    assert fates("modelopt", array, "--calibration")[array] == "done"
    named = "--op_types_to_quantize Conv"
    assert fates("modelopt", named)[named] == "refused"
