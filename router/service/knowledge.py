"""`/v1/kb`: search, list, add and delete documents, tell the last audit. Texts come in the request; no path and no URL
is ever opened."""

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from ...rag.audit import read_report
from ...rag.document import Document
from .errors import ApiError
from .openapi import Passage, plain
from .schemas import KbAddBody, KbSearchBody
from .state import Service, admin_only

Found = plain("Found", hits=list[Passage])
Added = plain("Added", documents=int, chunks=int)
Listed = plain("Listed", documents=list[str], chunks=int, fingerprint=str)
Audited = plain("Audited", audit=dict[str, Any] | None)
Deleted = plain("Deleted", id=str, deleted=bool)


def routes(service: Service) -> APIRouter:
    api = APIRouter(tags=["knowledge base"])

    @api.post("/v1/kb/search", responses={200: {"model": Found}}, summary="Find passages")
    async def search(body: KbSearchBody, http: HttpRequest) -> Response:
        kb = _kb(service)
        only: dict[str, Any] = {"labels": body.labels, "where": body.where}
        hits = await service.work(http, lambda: kb.search(body.query, k=body.k, **only))
        return JSONResponse({"hits": [_hit(hit) for hit in hits]})

    @api.get("/v1/kb", responses={200: {"model": Listed}}, summary="What the knowledge base holds")
    async def listed(http: HttpRequest) -> Response:
        kb = _kb(service)

        def read() -> dict[str, Any]:
            return {"documents": kb.doc_ids(), "chunks": len(kb), "fingerprint": kb.fingerprint}

        return JSONResponse(await service.work(http, read))

    @api.get(
        "/v1/kb/audit", responses={200: {"model": Audited}}, summary="The last audit's report, null before one (A5)"
    )
    async def audited(http: HttpRequest) -> Response:
        kb = _kb(service)
        return JSONResponse({"audit": await service.work(http, lambda: read_report(kb.path / "audit"))})

    @api.post("/v1/kb/documents", responses={200: {"model": Added}}, summary="Add or replace documents (admin)")
    async def add(body: KbAddBody, http: HttpRequest) -> Response:
        admin_only(http)
        kb = _kb(service)

        def put() -> int:
            given = [
                Document(doc_id=one.id, text=one.text, labels=tuple(one.labels), meta=one.meta)
                for one in body.documents
            ]
            chunks: int = kb.add_documents(given).chunks
            return chunks

        return JSONResponse({"documents": len(body.documents), "chunks": await service.work(http, put)})

    @api.delete("/v1/kb/documents/{doc_id:path}", responses={200: {"model": Deleted}}, summary="Delete one (admin)")
    async def delete(doc_id: str, http: HttpRequest) -> Response:
        admin_only(http)
        kb = _kb(service)
        if not await service.work(http, lambda: kb.delete(doc_id)):
            raise ApiError(404, "The knowledge base has no document of this id.", code="document_not_found", param="id")
        return JSONResponse({"id": doc_id, "deleted": True})

    return api


def _kb(service: Service) -> Any:
    if service.router.kb is None:
        raise ApiError(503, "This server has no knowledge base.", code="no_knowledge_base")
    return service.router.kb


def _hit(hit: Any) -> dict[str, Any]:
    return {
        "doc_id": hit.doc_id,
        "span": list(hit.span),
        "text": hit.text,
        "score": float(hit.score),
        "depth_score": hit.depth_score,
    }
