"""Every failure as OpenAI's error JSON (S2): one exception for the edge, and the mapping of everything else onto it.

Messages never carry request content: validation errors name the field and the rule, crashes say nothing but the
request id, and what is logged about a crash is the exception's type and place, not its message.
"""

import logging
import traceback
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..accounting import QuotaExceeded
from ..errors import InvalidRequest, MissingExtra, NoModel, Refused, RemoteFailed, RouterError

log = logging.getLogger("shoal.service")
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limited",
    503: "unavailable",
    504: "timeout",
}


class ApiError(HTTPException):
    """A refusal with its HTTP status, machine-readable `code` and the request field it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        extra = dict(headers or {})
        if retry_after is not None:
            extra["Retry-After"] = str(max(1, round(retry_after)))
        super().__init__(status, message, extra or None)
        self.code = code or CODES.get(status, "server_error")
        self.param = param

    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, headers=self.headers)


def api_error(error: BaseException) -> ApiError:
    """Any exception as an `ApiError`; an unknown one is a 500 that tells the caller nothing, and a line in the log."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return _http(error)
        case InvalidRequest():
            return ApiError(400, str(error), param=error.param)
        case Refused():
            return ApiError(422, str(error), code=error.code)
        case QuotaExceeded():
            return ApiError(429, str(error), code="insufficient_quota")
        case NoModel():
            return ApiError(503, str(error), code="no_model")
        case RemoteFailed():
            log.error("%s", error)
            return ApiError(502, str(error), code="remote_failed")
        case MissingExtra():
            return ApiError(503, str(error), code="missing_extra")
    return _from_engine(error) or _crash(error)


def _from_engine(error: BaseException) -> ApiError | None:
    """Errors the leaves raise on purpose: a wrong budget or too long a prompt is the caller's, the rest is ours."""
    from ...cache.errors import CacheError
    from ...gated_llm.errors import BudgetError, Busy, GatedError, PromptError, SamplingError
    from ...rag.errors import DocumentError, RagError

    match error:
        case BudgetError():
            return ApiError(400, str(error), code="invalid_max_depth", param="max_depth")
        case PromptError():
            return ApiError(400, str(error), code="invalid_prompt", param="messages")
        case SamplingError() | DocumentError():
            return ApiError(400, str(error))
        case Busy():
            return ApiError(503, str(error), code="model_busy", retry_after=1)
        case GatedError() | RagError() | CacheError() | RouterError():
            log.error("%s while answering", type(error).__name__)
            return ApiError(503, "A part of the service failed. Try again; the log names it.", code="part_failed")
    return None


def _crash(error: BaseException) -> ApiError:
    where = [f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-4:]]
    log.error("unexpected %s at %s", type(error).__name__, " < ".join(reversed(where)) or "unknown place")
    return ApiError(500, "The server failed on this request. Its id is in X-Request-Id.", code="internal_error")


def _http(error: HTTPException) -> ApiError:
    """Starlette's own: unknown path, wrong method, unreadable body."""
    messages = {
        404: "There is nothing at this path. GET /openapi.json lists the paths.",
        405: "This path does not take this method; the Allow header lists those it takes.",
        400: "The body is not JSON that can be read.",
    }
    message = messages.get(error.status_code, "The request was refused.")
    return ApiError(error.status_code, message, headers=dict(error.headers or {}))


def _invalid(error: RequestValidationError) -> ApiError:
    """The first wrong field, by name. Names come from our schemas, never from the caller's content."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "The body is not JSON that can be read.")
    path = [str(part) for part in first["loc"] if part != "body"]
    while len(path) > 1 and not path[-1].isdigit() and not path[-1].isidentifier():
        path.pop()  # pydantic's names for the members of a union, such as list[str]
    if len(path) > 1 and path[-1] in {"str", "int", "float", "bool"}:
        path.pop()
    param = ".".join(path)[:80] or None
    rules = {e["msg"] for e in error.errors() if param and ".".join(str(p) for p in e["loc"][1:]).startswith(param)}
    rule = "; or ".join(sorted(rules)) or first["msg"]
    return ApiError(400, f"{param or 'body'}: {rule}"[:300], code="invalid_type", param=param)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    return api_error(error).response()


def install(app: FastAPI) -> None:
    for kind in (HTTPException, RequestValidationError, RouterError, ValueError, RuntimeError, Exception):
        app.add_exception_handler(kind, _handle)
