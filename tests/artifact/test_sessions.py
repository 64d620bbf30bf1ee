"""Sessions under load: threads, other processes, copies, and arrays in every form."""

from __future__ import annotations

import copy
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.backends.ort_session import check_feed
from optkit.facts.errors import InputRefused, OptkitError, UsageError
from optkit.facts.evidence import Evidence
from optkit.ground.artifact import Artifact, Running, write
from optkit.ground.execute.proxy import Proxy
from optkit.ground.execute.task import TaskLimits
from optkit.ground.runtimes import simulator
from tests.artifact.test_artifact import MANIFEST

THREADS, ROWS = 64, 5


def _model() -> bytes:
    """y = relu(x W): large enough for several threads of the runtime."""
    weight = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    back = np.random.default_rng(1).standard_normal((256, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(back, "v")]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(made.SerializeToString())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    folder = tmp_path_factory.mktemp("sessions")
    before, os.environ["OPTKIT_CACHE"] = os.environ.get("OPTKIT_CACHE"), str(folder / "cache")
    yield write(folder / "artifacts", MANIFEST, {"model.onnx": _model()})
    os.environ.pop("OPTKIT_CACHE") if before is None else os.environ.update(OPTKIT_CACHE=before)


def _feed(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((ROWS, 4)).astype(np.float32)}


def test_threads_share_one_session_and_get_what_one_thread_gets(
    made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {seed: made.run(_feed(seed))["y"] for seed in range(THREADS)}
    made.close()
    opened, real = [], Artifact.session
    monkeypatch.setattr(
        Artifact, "session", lambda self, **rest: opened.append(1) or real(self, **rest)
    )
    start = threading.Barrier(THREADS)

    def work(seed: int) -> bool:
        start.wait()
        return all(np.array_equal(made.run(_feed(seed))["y"], expected[seed]) for _ in range(5))

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(THREADS)))
    assert len(opened) == 1


def test_close_beside_running_threads_is_one_clear_error(made: Artifact) -> None:
    session, feed = made.session(), _feed(0)
    expected, found = session.run(feed)["y"], []
    start = threading.Barrier(9)

    def work() -> None:
        start.wait()
        try:
            while True:
                assert np.array_equal(session.run(feed)["y"], expected)
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    start.wait()
    session.close()
    session.close()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for error in found:
        assert isinstance(error, UsageError) and "the session is closed" in error.message


def test_a_forked_process_runs_the_session_of_its_parent(made: Artifact) -> None:
    expected = made.run(_feed(1))["y"]
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if np.array_equal(made.run(_feed(1))["y"], expected) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def _in_child(artifact: Artifact, feed: dict[str, np.ndarray]) -> np.ndarray:
    return artifact.run(feed)["y"]


def test_an_artifact_goes_to_a_spawned_process(made: Artifact) -> None:
    expected = made.run(_feed(2))["y"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.array_equal(pool.apply(_in_child, (made, _feed(2))), expected)


def test_copies_of_an_artifact_have_sessions_of_their_own(made: Artifact) -> None:
    expected = made.run(_feed(3))["y"]
    for other in (copy.copy(made), copy.deepcopy(made)):
        assert (other.path, other.manifest, other.trusted) == (made.path, made.manifest, False)
        assert np.array_equal(other.run(_feed(3))["y"], expected)
        other.close()
    assert np.array_equal(made.run(_feed(3))["y"], expected)  # still open


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda s: s.__reduce_ex__(4)])
def test_a_session_cannot_be_copied(how: Callable[[Running], object], made: Artifact) -> None:
    with made.session() as session, pytest.raises(UsageError, match="cannot be copied"):
        how(session)


def _unaligned(array: np.ndarray) -> np.ndarray:
    room = np.zeros(array.shape, dtype=[("pad", "u1"), ("value", array.dtype)])
    room["value"] = array
    return np.asarray(room["value"])


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.setflags(write=False)
    return array


FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "big_endian": lambda x: x.astype(">f4"),
    "columns_first": np.asfortranarray,
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "mirrored": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "every_second": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
    "big_endian_backwards": lambda x: np.ascontiguousarray(x[::-1]).astype(">f4")[::-1],
    "unaligned": _unaligned,
    "read_only": _read_only,
}

_NUMBERS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.just(4)),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


@given(x=_NUMBERS, form=st.sampled_from(sorted(FORMS)), largest=st.integers(1, 12))
def test_every_form_and_every_batch_gives_the_bits_of_the_contiguous_feed(
    x: np.ndarray, form: str, largest: int, made: Artifact
) -> None:
    given_x = FORMS[form](x)
    assert np.array_equal(given_x, x, equal_nan=True)
    with simulator_session(made) as session:
        running = Running.of(session, "onnxruntime", Evidence.MEASURED, None, largest)
        expected = running.run({"x": np.ascontiguousarray(x)})["y"]
        assert np.array_equal(running.run({"x": given_x})["y"], expected, equal_nan=True)
        for row in range(len(x)):  # a row with NaN does not touch the others
            alone = running.run({"x": x[row : row + 1]})["y"]
            np.testing.assert_allclose(expected[row], alone[0], rtol=1e-3, atol=1e-3)


def simulator_session(made: Artifact) -> Running:
    return made.session(threads=1)


def test_rows_that_are_all_the_same_memory(made: Artifact) -> None:
    row = np.arange(4, dtype=np.float32)
    wide = np.broadcast_to(row, (6, 4))
    assert np.array_equal(made.run({"x": wide})["y"], made.run({"x": wide.copy()})["y"])


def test_a_session_behind_nothing_refuses_another_byte_order(made: Artifact) -> None:
    with pytest.raises(InputRefused, match="order of another kind of machine"):
        check_feed({"x": np.zeros((1, 4), ">f4")}, MANIFEST.inputs)


def test_a_scalar_stays_a_scalar_behind_a_pipe(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with Proxy(tmp_path / "model.onnx", {}, TaskLimits(1 << 30, 60.0), tmp_path) as proxy:
        assert proxy.run({"x": np.array(2, np.float32)})["y"].shape == ()
        assert proxy.run({"x": np.array(2, ">f4")})["y"] == -2


def test_a_closed_session_says_so(made: Artifact) -> None:
    session = simulator().session(made.model_path)
    session.close()
    for call in (lambda: session.run(_feed(0)), lambda: session.loop({}, {})):
        with pytest.raises(OptkitError, match="the session is closed"):
            call()
