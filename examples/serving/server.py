"""Serve an artifact over HTTP, by the Open Inference Protocol v2 with JSON.

MODEL=artifacts/NAME uvicorn server:app     TRUSTED=1: you know who built it
(docs/reference/artifact.md)
"""

import logging
import os
from threading import Lock
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import optkit
from optkit.errors import InputRefused

artifact = optkit.load(os.environ["MODEL"], trusted=os.environ.get("TRUSTED") == "1")
model = artifact.session()  # before the first request: the server is ready when it answers
if model.note:  # another backend than the engine's, such as a simulation where no GPU is
    logging.getLogger("uvicorn.error").warning(
        "%s on %s: %s", artifact.name, model.backend, model.note
    )
one_at_a_time = Lock()  # so that a request has all cores, or the whole device
app = FastAPI(strict_content_type=False)  # clients of Triton send none


class Tensor(BaseModel):
    name: str
    shape: list[int]
    datatype: str  # FP32, INT64, …
    data: list[Any]  # flat or nested, in row-major order

    def array(self) -> np.ndarray:
        try:
            dtype = np.dtype(self.datatype.lower().replace("fp", "float"))
            return np.array(self.data, dtype).reshape(self.shape)
        except (OverflowError, TypeError, ValueError) as error:
            raise InputRefused(str(error), where=f"input {self.name!r}") from None


class Inference(BaseModel):
    id: str | None = None
    inputs: list[Tensor]


def signature(name: str, dtype: str, shape: tuple[int | str, ...]) -> dict[str, Any]:
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    return {"name": name, "datatype": dtype.upper().replace("FLOAT", "FP"), "shape": sizes}


@app.get("/v2/health/live")
@app.get("/v2/health/ready")
@app.get(f"/v2/models/{artifact.name}/ready")
def ready() -> JSONResponse:
    return JSONResponse({"ready": True})


@app.get(f"/v2/models/{artifact.name}")
def metadata() -> JSONResponse:
    inputs, outputs = (
        [signature(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors]
        for tensors in (model.inputs, model.outputs)
    )
    return JSONResponse({"name": artifact.name, "versions": [], "inputs": inputs,
                         "outputs": outputs, "platform": f"optkit_{model.backend}"})  # fmt: skip


@app.post(f"/v2/models/{artifact.name}/infer")
def infer(request: Inference) -> JSONResponse:
    feed = {tensor.name: tensor.array() for tensor in request.inputs}
    with one_at_a_time:
        outputs = model.run(feed)
    tensors = [signature(name, array.dtype.name, array.shape) | {"data": array.ravel().tolist()}
               for name, array in outputs.items()]  # fmt: skip
    echo = {} if request.id is None else {"id": request.id}
    return JSONResponse({"model_name": artifact.name, "outputs": tensors} | echo)


@app.exception_handler(InputRefused)
def refuse(_: object, error: InputRefused) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 400)


@app.exception_handler(RequestValidationError)
def malformed(_: object, error: RequestValidationError) -> JSONResponse:
    places = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return JSONResponse({"error": "; ".join(places)}, 400)


@app.exception_handler(404)
def unknown(_: object, error: Exception) -> JSONResponse:
    return JSONResponse({"error": f"not found; this server has model {artifact.name!r}"}, 404)
