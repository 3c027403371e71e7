"""The Ray Serve deployment: one replica holds the pair and answers HTTP."""

from __future__ import annotations

from fastapi import FastAPI
from ray import serve as rayserve

from cluster.pair import LocalPair, PairSpec
from serve.http import create_app
from serve.service import GenerationService


@rayserve.deployment(graceful_shutdown_timeout_s=5.0)
@rayserve.ingress()
class Endpoint:
    """An OpenAI-compatible endpoint over a pair in the replica's own process.

    Args:
        spec: the two models and how they are run.
        model_name: the name under which requests address the pair.
    """

    def __init__(self, spec: PairSpec, model_name: str) -> None:
        self._pair = LocalPair(spec)
        self._service = GenerationService(self._pair.engine, self._pair.tokenizer, threads=spec.threads)
        self._model_name = model_name

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Ray Serve once the replica is constructed."""
        return create_app(self._service, self._model_name)

    def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica whose check fails."""
        if self._service.failure is not None:
            raise RuntimeError(self._service.failure)

    def __del__(self) -> None:
        if hasattr(self, "_service"):
            self._service.close()
            self._pair.close()
