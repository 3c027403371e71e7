"""Errors as a client sees them: OpenAI's JSON shape, the field at fault by name, never a stack trace."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from serve.protocol import ErrorDetail, ErrorReply

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """An answer with an error status.

    Args:
        status: HTTP status; 4xx blames the request, 5xx the server.
        message: one sentence, "Expected X, got Y" and what to do.
        param, code: see :class:`serve.protocol.ErrorDetail`.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.detail = ErrorDetail(
            message=_encodable(message),
            type="invalid_request_error" if status < 500 else "server_error",
            param=None if param is None else _encodable(param),
            code=code,
        )

    @property
    def body(self) -> str:
        """The JSON text of the answer."""
        return ErrorReply(error=self.detail).model_dump_json()


def install(app: FastAPI) -> None:
    """Let every error of the app leave in OpenAI's shape."""

    async def api_error(_request: Request, error: Exception) -> JSONResponse:
        return _answer(error if isinstance(error, ApiError) else _translate(error))

    for kind in (ApiError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, api_error)


def _answer(error: ApiError) -> JSONResponse:
    return JSONResponse(ErrorReply(error=error.detail).model_dump(), error.status)


def _translate(error: Exception) -> ApiError:
    """Any other exception as an :class:`ApiError`; what a client must not see stays in the log."""
    if isinstance(error, RequestValidationError):
        return _of_validation(error.errors())
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail))
    logger.error("request failed", exc_info=error)
    return ApiError(500, "The server failed to handle this request; its log says why", code="internal_error")


def _of_validation(errors: Sequence[dict[str, Any]]) -> ApiError:
    """The first fault that pydantic found, by the name of its field."""
    fault = errors[0]
    kind, path = fault["type"], fault["loc"][1:]  # the first part is "body"
    if kind == "json_invalid":
        return ApiError(400, f"Expected a JSON body, got one that does not parse: {fault['ctx']['error']}")
    param = _param(path)
    where = f" for {param!r}" if param else ""
    if kind == "extra_forbidden":
        return ApiError(400, f"Expected only supported fields, got {param!r}; leave it out", param, "unknown_parameter")
    if kind == "missing":
        return ApiError(400, f"Expected a value{where}, got none", param, "missing_required_parameter")
    if kind == "value_error":
        return ApiError(400, str(fault["ctx"]["error"]), param, "invalid_value")
    expected = fault["msg"].replace("Input should be", "Expected").replace("Input should have", "Expected")
    return ApiError(400, f"{expected}{where}, got {reprlib.repr(fault['input'])}", param, "invalid_value")


def _param(path: Sequence[str | int]) -> str | None:
    """``("messages", 0, "role")`` as ``messages[0].role``; the names that pydantic gives to a union's members left out."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part != "str" and "[" not in part:
            name += f".{part}" if name else part
    return name or None


def _encodable(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
