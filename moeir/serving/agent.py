"""The search as tools of an agent: the Model Context Protocol over standard input and output."""

import asyncio
import json

from mcp.server import MCPServer

from moeir.errors import MoeirError
from moeir.serving.service import SearchService


def serve_agent(service: SearchService) -> None:
    """Answer an agent's calls of `search` and `get_document` until standard input ends."""
    server = MCPServer("moeir", instructions="Search a collection of documents; get_document gives the whole text of one.")

    @server.tool()
    async def search(query: str, k: int = 10) -> str:
        """The k best documents for a query in words: id, rank, score, and title and text where the server has them, as JSON."""
        try:
            answer = json.loads(await service.search({"query": query, "k": k, "texts": True}))
        except MoeirError as problem:
            return f"error: {problem}"
        return json.dumps(answer["results"][0]["hits"], ensure_ascii=False)

    @server.tool()
    async def get_document(document_id: str) -> str:
        """The title and text of a document whose id search gave."""
        texts = service.served.texts
        text = None if texts is None else texts.get(document_id)
        return f"error: no text of document {document_id!r}" if text is None else f"{text.title}\n\n{text.text}".strip()

    async def run() -> None:
        async with service.running():
            await server.run_stdio_async()

    asyncio.run(run())
