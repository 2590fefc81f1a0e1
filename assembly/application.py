"""The HTTP application: the routes of all packages, behind access and admission."""

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from agent import routes as agent_routes
from agent.access import AccessMiddleware
from agent.admission import AdmissionMiddleware
from assembly.parts import Parts
from assembly.status import Status
from graders import review_routes, rubric_routes
from graders import routes as grader_routes
from learner import adapter_routes, cycle_routes, task_routes
from learner.curriculum import missing
from learner.evaluation import Evaluation
from learner.trees import rows_of_tree
from memory import erase_routes, guideline_routes
from memory import routes as memory_routes
from memory.http import answer_errors


def application(parts: Parts, status: Status) -> ASGIApp:
    """Return what the server serves."""
    app = FastAPI(
        title="Denizen", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    for router in _routers(parts, status):
        app.include_router(router)
    app.add_api_route("/v1/status", status.show)
    answer_errors(app)
    answering = agent_routes.Answering(parts.gateway, parts.recorder, otherwise=app)
    settings = parts.settings
    return AccessMiddleware(
        AdmissionMiddleware(answering, in_flight=parts.in_flight),
        auth=settings.auth,
        max_body_bytes=int(settings.server.max_body_mib * 2**20),
        max_upload_bytes=parts.fit.max_upload_bytes,
    )


def _routers(parts: Parts, status: Status) -> list[APIRouter]:
    store, settings, wake = parts.store, parts.settings, parts.intake.wake
    evaluation = Evaluation(store=store, practice=parts.practice, gate=settings.promotion)
    return [
        agent_routes.routes(parts.gateway, parts.names, status.not_ready),
        review_routes.routes(store, parts.trust, settings.graders),
        memory_routes.routes(
            store,
            lambda skill: missing(skill, settings.learner),
            lambda calls: rows_of_tree(calls, group_id="").fates,
        ),
        grader_routes.routes(store, wake, parts.privacy),
        rubric_routes.routes(store),
        guideline_routes.routes(store),
        erase_routes.routes(store, parts.eraser),
        task_routes.routes(
            store, settings.tasks, parts.privacy, wake, has_judge=parts.judges.is_on
        ),
        cycle_routes.routes(store, parts.runner),
        adapter_routes.routes(store, parts.registry, parts.pointer, evaluation),
    ]
