"""The service: settings in, components wired, started and stopped in order. No algorithm."""

import asyncio
import logging
import signal
import socket
import sys
from contextlib import closing, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.types import ASGIApp

import home as house
import settings as configuration
from agent import attached, garbage, metrics, preflight
from agent import routes as agent_routes
from agent.access import AccessMiddleware
from agent.adapter_slot import AdapterSlot
from agent.admission import AdmissionMiddleware, InFlight
from agent.base_chat import BaseChat
from agent.base_model import base_digest, local_model, prepare_packaged_model
from agent.engine import VllmProcess
from agent.gateway import Gateway
from agent.http_server import Server, listen
from agent.likelihood import Likelihood
from agent.model_names import ModelNames
from agent.pins import Pins
from agent.placement import Placement
from agent.policy import PolicyClient
from agent.prompts import Prompts
from agent.sampler import Sampler
from agent.scheduler import Scheduler
from agent.special_tokens import special_tokens
from agent.supervisor import supervise
from graders import catalog, functions, review_routes, rubric_routes
from graders import routes as grader_routes
from graders.chat_model import EngineModel
from graders.checks import Check
from graders.endpoint import EndpointModel
from graders.judges import Judges
from graders.judging import wants_judge
from graders.pairing import RUNS_PER_HOUR
from graders.trust import JudgeTrust
from graders.unit_tests import unit_tests
from learner import adapter_routes, cycle_routes, task_routes
from learner.coverage import Coverage
from learner.curriculum import missing
from learner.evaluation import Evaluation
from learner.fit import Fit
from learner.intake import Intake, answered_of
from learner.live_groups import LiveGroups
from learner.live_proof import LiveProof
from learner.pointer import Pointer
from learner.registry import Registry
from learner.rehearsal import RehearsalRows
from learner.rollouts import Practice
from learner.runner import CycleRunner
from learner.sources import JoinedRows, PracticeRows
from learner.training_process import TrainingProcess
from learner.trees import main_line, rows_of_tree
from learner.workshop import LiveWork, Workshop
from memory import erase_routes
from memory import routes as memory_routes
from memory.embedding_process import EmbeddingProcess
from memory.eraser import Eraser
from memory.errors import ConfigError, DenizenError
from memory.fences import ControlTokens
from memory.http import answer, answer_errors
from memory.neighbours import Neighbours
from memory.privacy import Privacy, redactor_of
from memory.recall import Recall
from memory.regrouping import Regrouping
from memory.retention import Retention
from memory.skills import Embedder
from memory.sorter import Sorter
from memory.store import Store
from memory.tenants import EVERYTHING, Sight, caller_of
from memory.vectors import EpisodeVectors
from memory.version_store import BASE
from settings import Settings

__all__ = ["ConfigError", "DenizenError", "Service", "serve"]

log = logging.getLogger("denizen")
RETENTION_INTERVAL_S = 3_600.0
VECTORS_INTERVAL_S = 300.0
WAL_INTERVAL_S = 10.0
TRUST_INTERVAL_S = 3_600.0 / RUNS_PER_HOUR
PROBE_INTERVAL_S = 600.0
SWITCH_INTERVAL_S = 0.0005
"""How long a thread that sorts or grades may keep the interpreter from the one that answers.
Python's own 5 ms is more than an answer takes in all."""


class Service:
    """Everything that runs in one process over one home folder."""

    def __init__(self, settings: Settings, home: Path, embedder: Embedder) -> None:
        self.settings = settings
        self.home = home
        self.url = ""
        self._embedder = embedder
        self._server: Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._told_reason: str | None = None  # why an engine is down, as said last
        self.engine: VllmProcess | None = None
        teacher = settings.teacher
        self._endpoint = EndpointModel(teacher) if teacher.base_url else None

    async def run(self, listener: socket.socket) -> None:
        """Serve on a bound socket until told to stop by a signal or ``request_stop``."""
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._server = Server(await self.start())
        try:
            with house.note(self.home, self.url), garbage.looked_for_rarely():
                _say(f"Denizen listens on {self.url}; its home is {self.home}")
                await self._server.serve(sockets=[listener])
        finally:
            await self.stop()

    def request_stop(self) -> bool:
        """End ``run`` soon; False while it is still starting."""
        if self._server is None:
            return False
        self._server.request_stop()
        return True

    async def start(self) -> ASGIApp:
        """Wire the components and return the application; the engine goes on starting behind it."""
        config = self.settings
        catalog.install(self._own_checks())
        model, clients = await self._engines()
        self._clients = clients
        tenants = config.privacy.learn_from
        self.store = Store(self.home / "denizen.db", config.memory, learn_from=tenants)
        digest = await asyncio.to_thread(base_digest, model)
        self.fit = await asyncio.to_thread(
            Fit.of, model, base_digest=digest, max_rank=config.engine.max_lora_rank
        )
        self.registry = Registry(self.store.versions, self.home / "adapters", self.fit)
        for path in self.registry.swept:
            log.warning("%s was left unfinished by a crash, or is of another database", path.name)
        versions = self.store.versions
        self.slot = AdapterSlot(
            clients,
            self.registry,
            live=versions.live(),
            previous=versions.previous() or BASE,
            max_resident=config.engine.max_loras,
        )
        self.pointer = Pointer(self.store.versions, self.store.cycles, self.slot)
        self.coverage = Coverage(self.store.episodes)
        self.in_flight = InFlight(config.server.max_in_flight)
        self.trust = JudgeTrust(self.store.judge_evidence, config.graders)
        await asyncio.to_thread(self.trust.refresh)
        self.sorter = Sorter(self.store, self._embedder, config.skills)
        self.intake = self._intake()
        self.runner = CycleRunner(
            self._workshop(model), is_engine_ready=lambda: not self.slot.not_ready()
        )
        names = ModelNames(self.store.versions, lambda: self.slot.live)
        self.vectors = EpisodeVectors(
            self.store.database,
            embedder_id=self._embedder.id,
            dimension=self._embedder.dimension,
            file=self.home / "vectors.faiss",
        )
        self.privacy = await asyncio.to_thread(self._privacy, model)
        self.judges = self._judges(digest)
        self.recall = Recall(
            self.store,
            embedder=self._embedder,
            index=self.vectors,
            config=config.recall,
            control_tokens=self.privacy.control_tokens,
        )
        placement = Placement(self.store.episodes, self.privacy)
        prompts = Prompts(self.privacy, self.recall, self.store.episodes.recalled)
        self.eraser = Eraser(
            self.store,
            self.home,
            running=placement.running,
            forget=[placement.forget, prompts.forget, self.judges.forget],
            let_go=[self.runner.let_go],
            clean_up=[self.sorter.distrust, self.vectors.reconcile, self.vectors.save],
        )
        await self.eraser.finish()
        self.runner.adopt()
        self.gateway = Gateway(
            slot=self.slot,
            placement=placement,
            prompts=prompts,
            find_call=lambda call_id, sight: self.store.episodes.seen_by(sight).call(call_id),
            resolve=names.resolve,
            check_grader=partial(catalog.require_known, has_judge=self.judges.is_on),
            on_recorded=self.intake.wake,
            pins=Pins(self.store.episodes, versions) if config.engine.pin_sessions else None,
        )
        self.scheduler = Scheduler()
        self.scheduler.every(config.learner.check_interval_s, "learn", self.runner.check)
        regrouping = Regrouping(self.store, self.sorter, config.skills)
        self.scheduler.every(config.skills.regroup_interval_s, "regroup", regrouping.run)
        retention = Retention(
            self.store.database,
            config.memory,
            forget=[placement.forget, prompts.forget, lambda _: self.sorter.distrust()],
        )
        self.scheduler.every(RETENTION_INTERVAL_S, "retention", retention.run)
        self.scheduler.every(TRUST_INTERVAL_S, "trust", self.judges.measure)
        self.scheduler.every(PROBE_INTERVAL_S, "probe", self.judges.probe)
        self.scheduler.every(VECTORS_INTERVAL_S, "vectors", self._maintain_vectors)
        self.scheduler.every(WAL_INTERVAL_S, "wal", self._bound_wal)
        self.scheduler.start()
        for work in (
            self.intake.grade(),
            self._find_skills(),
            self.judges.run(),
            self._watch_engines(clients),
        ):
            task = asyncio.create_task(work)
            task.add_done_callback(self._on_task_ended)
            self._tasks.append(task)
        return self._application(names)

    async def stop(self) -> None:
        """Stop what runs, in the reverse order, and write down what is to be gone on with."""
        self.scheduler.stop()
        await self.runner.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.intake.close()
        await self.gateway.close()
        self.recall.close()
        await self.slot.close()
        for client in self._clients:
            await client.close()
        if self._endpoint is not None:
            await self._endpoint.close()
        self.store.close()

    def not_ready(self) -> list[str]:
        """Say in one line each why the service is not ready; empty when it is."""
        reasons = self.slot.not_ready()
        if self.gateway.record_failure:
            reasons.append(f"degraded: answers are not recorded: {self.gateway.record_failure}")
        if not self.store.is_writable():
            reasons.append("the database cannot be written")
        return [reason.splitlines()[0] for reason in reasons]

    def status(self) -> dict[str, Any]:
        """Return what ``denizen status`` shows."""
        cycles = self.store.cycles.page(limit=2)
        running = self.runner.running
        engines = self.slot.engines()
        troubles = [f"engine {one['url']}: {one['reason']}" for one in engines if one["reason"]]
        return self.status_of(EVERYTHING) | {
            "home": str(self.home),
            "previous": self.store.versions.previous(),
            "engine": {
                "state": "down" if self.slot.not_ready() else "ready",
                "reason": "; ".join(troubles) or None,
                "engines": engines,
            },
            "reasons": self.not_ready(),
            "tainted": sorted(self.store.versions.taints()),
            "learnable": self.coverage.report(),
            "judge": self.judges.report(),
            "running": running,
            "progress": self.runner.progress,
            "next_check_in_s": self.scheduler.seconds_to_next("learn"),
            "failed_jobs": self.scheduler.failures,
            "last_cycle": next((c for c in cycles if running is None or c.id != running.id), None),
        }

    def status_of(self, sight: Sight) -> dict[str, Any]:
        """Return what a tenant may know: whether it is answered, by what, and its own records."""
        skills = [skill for skill in self.store.skills.all() if sight.sees(skill.tenant)]
        return {
            "version": version("denizen"),
            "url": self.url,
            "live": self.slot.live,
            "ready": not self.not_ready(),
            "counts": self.store.episodes.seen_by(sight).counts()
            | {"tasks": self.store.tasks.count(sight)},
            "skills": [
                {
                    "id": skill.id,
                    "title": skill.title,
                    "num_new_signal": skill.num_new_signal,
                    "mean_outcome": skill.mean_outcome,
                    "missing": missing(skill, self.settings.learner),
                }
                for skill in skills
            ],
            "judges": self.trust.report(frozenset(skill.id for skill in skills)),
        }

    def _show_status(self, request: Request) -> Response:
        caller = caller_of(request)
        if caller.is_admin or not self.settings.auth.tenants:
            return answer(self.status())
        return answer(self.status_of(caller.own))

    async def _engines(self) -> tuple[Path, list[PolicyClient]]:
        """Return the base model and a client for each engine: by URL, or a child to be started."""
        config = self.settings.engine
        if config.urls:
            clients = [PolicyClient(url, config.api_key) for url in config.urls]
            root = config.model or await attached.base_root(clients, config.start_timeout_s)
            return await asyncio.to_thread(local_model, root, _say), clients
        if config.model is None:
            model = await asyncio.to_thread(prepare_packaged_model, self.home / "models", _say)
        else:
            model = await asyncio.to_thread(local_model, config.model, _say)
        for warning in await asyncio.to_thread(preflight.check, config, model):
            _say(f"warning: {warning}")
        self.engine = VllmProcess(config, model=model, log_path=self.home / "logs/engine.log")
        return model, [PolicyClient(self.engine.url, self.engine.api_key)]

    async def _watch_engines(self, clients: list[PolicyClient]) -> None:
        if self.engine is None:
            await attached.watch(clients, self._on_engine_ready, self._on_engine_down)
        else:
            on_ready = partial(self._on_engine_ready, clients[0])
            await supervise(self.engine, on_ready, partial(self._on_engine_down, clients[0]), _say)

    async def _find_skills(self) -> None:
        """Load what finding skills needs before the first requests come, then find them."""
        await asyncio.to_thread(self.vectors.open)
        await self.intake.warm_up()
        garbage.keep_what_is()
        await self.intake.sort()

    async def _maintain_vectors(self) -> None:
        await asyncio.to_thread(self.vectors.maintain)

    async def _bound_wal(self) -> None:
        await asyncio.to_thread(self.store.database.bound_wal)
        metrics.WAL_BYTES.set(self.store.database.wal_bytes)

    async def _on_engine_ready(self, client: PolicyClient) -> None:
        was_ready = not self.slot.not_ready()
        await self.slot.restore(client)
        if not was_ready and not self.slot.not_ready():
            _say(f"Denizen is ready at {self.url} (live: {self.slot.live})")
            self._told_reason = None
        self.runner.take_up()

    def _on_task_ended(self, task: "asyncio.Task[None]") -> None:
        """Stop the service when a part that must run for ever has ended by an error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the service stops: a part of it failed", exc_info=error)
            self.request_stop()

    async def _on_engine_down(self, client: PolicyClient, reason: str) -> None:
        told = f"engine {client.base_url}: {reason}"
        if told != self._told_reason:
            print(told, file=sys.stderr, flush=True)
            log.error("%s", told)
        self._told_reason = told
        self.slot.mark_down(client, reason)

    def _intake(self) -> Intake:
        return Intake(
            store=self.store,
            sorter=self.sorter,
            grader_of=catalog.find_grader,
            config=self.settings.tasks,
            is_answering=lambda: self.in_flight.is_busy,
            trust=self.trust,
            wants_judge=partial(wants_judge, self.settings.graders),
            on_digested=lambda: self.judges.wake(),
        )

    def _judges(self, base_digest: str) -> Judges:
        own_engine = EngineModel(BaseChat(self.slot), name=f"denizen@base:{base_digest[:12]}")
        return Judges(
            store=self.store,
            config=self.settings.graders,
            trust=self.trust,
            model=self._endpoint or own_engine,
            control_tokens=self.privacy.control_tokens,
            answer_of=self._answer_of,
            on_judged=self.intake.wake,
            has_to_wait=lambda: (
                self._endpoint is None and (self.in_flight.is_busy or bool(self.slot.not_ready()))
            ),
        )

    def _answer_of(self, episode_id: str) -> str | None:
        """Return the call whose answer an episode is graded by."""
        answered = answered_of(main_line(self.store.episodes.call_texts(episode_id)))
        return answered[-1].id if answered else None

    def _own_checks(self) -> list[Check]:
        config = self.settings.graders
        code = unit_tests(allow_without_namespaces=config.run_code_without_namespaces)
        return [code, *functions.load(config)]

    def _privacy(self, model: Path) -> Privacy:
        config = self.settings
        keys = [*config.auth.all_keys, *filter(None, [config.engine.api_key])]
        keys += config.teacher.keys
        return Privacy(
            config.privacy,
            redactor=redactor_of(config.privacy, known=keys),
            control_tokens=ControlTokens(special_tokens(model)),
        )

    def _practice(self) -> Practice:
        return Practice(
            sample=Sampler(self.slot),
            grader_of=lambda task: self.judges.grader_of(task),
            store=self.store,
            trust=self.trust,
        )

    def _workshop(self, model: Path) -> Workshop:
        config = self.settings.learner

        def open_training(parent: Path | None, resume_from: Path | None) -> TrainingProcess:
            return TrainingProcess(
                model_dir=model,
                config=config,
                parent_adapter=parent,
                resume_from=resume_from,
                max_memory_mib=config.max_memory_mib,
                step_timeout_s=config.step_timeout_s,
                log_path=self.home / "logs/learner.log",
            )

        practice, promotion = self._practice(), self.settings.promotion
        fresh = PracticeRows(practice, config)
        neighbours = Neighbours(self.store.database, embedder_id=self._embedder.id)
        recorded = LiveGroups(self.store, neighbours, config)
        proof = LiveProof(
            recorded, Likelihood(self.slot), promotion, max_episodes=config.max_heldout_tasks
        )
        return Workshop(
            store=self.store,
            registry=self.registry,
            pointer=self.pointer,
            practice=practice,
            rows=JoinedRows(fresh, recorded),
            extra_rows=[RehearsalRows(fresh, self.store, config)],
            weights=self.slot,
            base_digest=self.fit.base_digest,
            open_training=open_training,
            work_dir=self.home / "work",
            learner=config,
            gate=promotion,
            promotes_by_itself=promotion.mode == "auto",
            live=LiveWork(
                groups=recorded, proof=proof, promotes_by_itself=promotion.promote_unreplayed
            ),
        )

    def _application(self, names: ModelNames) -> ASGIApp:
        app = FastAPI(
            title="Denizen", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
        )
        has_judge = self.judges.is_on
        app.include_router(agent_routes.routes(self.gateway, names, self.not_ready))
        app.include_router(review_routes.routes(self.store, self.trust, self.settings.graders))
        app.include_router(
            memory_routes.routes(
                self.store,
                lambda skill: missing(skill, self.settings.learner),
                lambda calls: rows_of_tree(calls, group_id="").fates,
            )
        )
        app.include_router(grader_routes.routes(self.store, self.intake.wake, self.privacy))
        app.include_router(rubric_routes.routes(self.store))
        app.include_router(erase_routes.routes(self.store, self.eraser))
        app.include_router(
            task_routes.routes(
                self.store, self.settings.tasks, self.intake.wake, has_judge=has_judge
            )
        )
        app.include_router(cycle_routes.routes(self.store, self.runner))
        evaluation = Evaluation(
            store=self.store,
            practice=self._practice(),
            gate=self.settings.promotion,
        )
        app.include_router(
            adapter_routes.routes(self.store, self.registry, self.pointer, evaluation)
        )
        app.add_api_route("/v1/status", self._show_status)
        answer_errors(app)
        answering = agent_routes.Answering(self.gateway, otherwise=app)
        return AccessMiddleware(
            AdmissionMiddleware(answering, in_flight=self.in_flight),
            auth=self.settings.auth,
            max_body_bytes=int(self.settings.server.max_body_mib * 2**20),
            max_upload_bytes=self.fit.max_upload_bytes,
        )


def serve(
    *,
    home: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    engine_urls: list[str] | None = None,
) -> None:
    """Run the service until it is told to stop. Arguments that are given win over the settings.

    Raises:
        ConfigError: a setting is wrong, the port is taken, or another service runs on this home.
    """
    home = house.find(home)
    given: dict[str, dict[str, Any]] = {
        "server": {"host": host, "port": port},
        "engine": {"urls": engine_urls or None},
    }
    overrides = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in given.items()
    }
    settings = configuration.load(home, overrides)
    house.log_to(home, settings.server.log_level, [*settings.auth.all_keys, *settings.teacher.keys])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with house.lock(home), listen(settings.server.host, settings.server.port) as listener:
        uvloop.run(_until_signalled(settings, home, listener))


async def _until_signalled(settings: Settings, home: Path, listener: socket.socket) -> None:
    with closing(EmbeddingProcess()) as embedder:
        service = Service(settings, home, embedder)
        running = asyncio.create_task(service.run(listener))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: service.request_stop() or running.cancel())
        with suppress(asyncio.CancelledError):  # told to stop while it was starting
            await running


def _say(line: str) -> None:
    """Tell the person at the terminal, and the log."""
    print(line, flush=True)
    log.info(line)
