"""The parts of a service, joined: what each is made with, and whom it calls. Starts nothing."""

from functools import partial
from pathlib import Path

from agent.adapter_slot import AdapterSlot
from agent.admission import InFlight
from agent.base_chat import BaseChat
from agent.chat_tokens import ChatTokens
from agent.engines import Engines
from agent.gateway import Gateway
from agent.likelihood import Likelihood
from agent.model_names import ModelNames
from agent.pins import Pins
from agent.placement import Placement
from agent.prompts import Prompts
from agent.recorder import Recorder
from agent.sampler import Sampler, TurnSampler
from graders import catalog
from graders.chat_model import EngineModel
from graders.endpoint import EndpointModel
from graders.judges import Judges
from graders.judging import wants_judge
from graders.trust import JudgeTrust
from learner.digest import Digestion, answered_of
from learner.drift_proof import DriftProof
from learner.fit import Fit
from learner.general_probe import GeneralProbe
from learner.intake import Intake
from learner.live_groups import LiveGroups
from learner.live_proof import LiveProof
from learner.next_turns import NextTurns
from learner.pointer import Pointer
from learner.registry import Registry
from learner.rehearsal import RehearsalRows
from learner.rollouts import Practice
from learner.runner import CycleRunner
from learner.sources import JoinedRows, PracticeRows, RowSource
from learner.training_process import TrainingProcess
from learner.trees import main_line
from learner.workshop import LiveWork, Workshop
from memory import vector_file
from memory.eraser import Eraser
from memory.fences import ControlTokens
from memory.neighbours import Neighbours
from memory.privacy import Privacy, redactor_of
from memory.recall import Recall
from memory.regrouping import Regrouping
from memory.retention import Retention
from memory.skills import Embedder
from memory.sorter import Sorter
from memory.store import Store
from memory.vectors import EpisodeVectors
from memory.version_store import BASE
from settings import Settings


class Parts:
    """Everything that works on one home folder.

    Args:
        settings: of all parts.
        home: where files are kept.
        embedder: makes vectors of tasks.
        store: the home's, open; ``close`` closes it.
        engines: who answers; ``close`` closes their clients.
        fit: which adapters fit the base model.
        control_tokens: the base model's, which no recorded text may bring into a prompt.
    """

    def __init__(
        self,
        settings: Settings,
        home: Path,
        embedder: Embedder,
        *,
        store: Store,
        engines: Engines,
        fit: Fit,
        control_tokens: ControlTokens,
    ) -> None:
        self.settings = settings
        self.home = home
        self._embedder = embedder
        self.store = store
        self._engines = engines
        self.fit = fit
        self.privacy = self._privacy(control_tokens)
        self.registry = Registry(store.versions, home / "adapters", fit)
        self.slot = AdapterSlot(
            engines.clients,
            self.registry,
            live=store.versions.live(),
            previous=store.versions.previous() or BASE,
            max_resident=settings.engine.max_loras,
        )
        self.names = ModelNames(store.versions, lambda: self.slot.live)
        self.pointer = Pointer(store.versions, store.cycles, self.slot)
        self.in_flight = InFlight(settings.server.max_in_flight)
        self.trust = JudgeTrust(store.judge_evidence, settings.graders)
        self.sorter = Sorter(store, embedder, settings.skills)
        self.intake = self._intake()
        self._endpoint = EndpointModel(settings.teacher) if settings.teacher.base_url else None
        self.judges = self._judges()
        self.practice = Practice(
            sample=Sampler(self.slot),
            grader_of=self.judges.grader_of,
            store=store,
            trust=self.trust,
            privacy=self.privacy,
        )
        self.runner = CycleRunner(
            self._workshop(), is_engine_ready=lambda: not self.slot.not_ready()
        )
        self.vectors = EpisodeVectors(
            store.database,
            embedder_id=embedder.id,
            dimension=embedder.dimension,
            file=home / vector_file.FILE_NAME,
        )
        self.recall = Recall(
            store,
            embedder=embedder,
            index=self.vectors,
            sorting=self.sorter,
            config=settings.recall,
            control_tokens=control_tokens,
        )
        placement = Placement(store.episodes, self.privacy)
        prompts = Prompts(self.privacy, self.recall, store.episodes.recalled)
        self.recorder = Recorder(placement, on_recorded=self.intake.wake)
        self.gateway = self._gateway(placement, prompts)
        self.eraser = Eraser(
            store,
            home,
            running=placement.running,
            forget=[placement.forget, prompts.forget, self.judges.forget],
            let_go=[self.runner.let_go],
            clean_up=[self.sorter.distrust, self.vectors.forget_gone],
        )
        self.retention = Retention(
            store.database,
            settings.memory,
            forget=[placement.forget, prompts.forget, lambda _: self.sorter.distrust()],
        )
        self.regrouping = Regrouping(store, self.sorter, settings.skills)

    async def close(self) -> None:
        """Let go of what is held, the store last."""
        self.intake.close()
        await self.recorder.close()
        self.recall.close()
        await self.slot.close()
        await self._engines.close()
        if self._endpoint is not None:
            await self._endpoint.close()
        self.store.close()

    def _privacy(self, control_tokens: ControlTokens) -> Privacy:
        config = self.settings
        keys = [*config.auth.all_keys, *filter(None, [config.engine.api_key])]
        keys += config.teacher.keys
        redactor = redactor_of(config.privacy, known=keys)
        return Privacy(config.privacy, redactor=redactor, control_tokens=control_tokens)

    def _intake(self) -> Intake:
        digestion = Digestion(
            grader_of=catalog.find_grader,
            config=self.settings.tasks,
            wants_judge=partial(wants_judge, self.settings.graders),
            trust=self.trust,
        )
        return Intake(
            store=self.store,
            sorter=self.sorter,
            digestion=digestion,
            is_answering=lambda: self.in_flight.is_busy,
            on_digested=lambda: self.judges.wake(),
        )

    def _judges(self) -> Judges:
        base = f"denizen@base:{self.fit.base_digest[:12]}"
        return Judges(
            store=self.store,
            config=self.settings.graders,
            trust=self.trust,
            model=self._endpoint or EngineModel(BaseChat(self.slot), name=base),
            control_tokens=self.privacy.control_tokens,
            answer_of=self._answer_of,
            on_judged=self.intake.wake,
            has_to_wait=lambda: (
                self._endpoint is None and (self.in_flight.is_busy or bool(self.slot.not_ready()))
            ),
            ranks=self._takes_turns_again,
        )

    @property
    def _takes_turns_again(self) -> bool:
        """Whether recorded turns are practised: somebody else's model has to rank them."""
        graders, learner = self.settings.graders, self.settings.learner
        is_asked = self._endpoint is not None and graders.judge != "off" and graders.votes > 1
        return is_asked and learner.next_turns_per_step > 0

    def _answer_of(self, episode_id: str) -> str | None:
        """Return the call whose answer an episode is graded by."""
        answered = answered_of(main_line(self.store.episodes.call_texts(episode_id)))
        return answered[-1].id if answered else None

    def _gateway(self, placement: Placement, prompts: Prompts) -> Gateway:
        episodes, versions = self.store.episodes, self.store.versions
        return Gateway(
            slot=self.slot,
            placement=placement,
            recorder=self.recorder,
            prompts=prompts,
            find_call=lambda call_id, sight: episodes.seen_by(sight).call(call_id),
            resolve=self.names.resolve,
            check_grader=partial(catalog.require_known, has_judge=self.judges.is_on),
            pins=Pins(episodes, versions) if self.settings.engine.pin_sessions else None,
        )

    def _workshop(self) -> Workshop:
        config, promotion = self.settings.learner, self.settings.promotion
        fresh = PracticeRows(self.practice, config)
        neighbours = Neighbours(self.store.database, embedder_id=self._embedder.id)
        recorded = LiveGroups(self.store, neighbours, config)
        sources: list[RowSource] = [fresh, recorded]
        if self._takes_turns_again:
            sources.append(self._next_turns())
        rehearsed = RehearsalRows(fresh, self.store, config)
        likelihood = Likelihood(self.slot)
        proof = LiveProof(recorded, likelihood, promotion, max_episodes=config.max_heldout_tasks)
        probe = GeneralProbe(ChatTokens(self.slot), likelihood)
        return Workshop(
            store=self.store,
            registry=self.registry,
            pointer=self.pointer,
            practice=self.practice,
            rows=JoinedRows(*sources),
            extra_rows=[rehearsed],
            sampled_ahead=[fresh, rehearsed] if config.overlap else [],
            weights=self.slot,
            base_digest=self.fit.base_digest,
            open_training=self._training,
            work_dir=self.home / "work",
            learner=config,
            gate=promotion,
            promotes_by_itself=promotion.mode == "auto",
            live=LiveWork(
                groups=recorded, proof=proof, promotes_by_itself=promotion.promote_unreplayed
            ),
            drift=DriftProof(self.store, likelihood, probe, promotion),
        )

    def _next_turns(self) -> NextTurns:
        return NextTurns(
            self.store,
            sample=TurnSampler(self.slot),
            ranker_of=self.judges.ranking_of,
            why_not_now=self.judges.why_not_now,
            trust=self.trust,
            config=self.settings.learner,
        )

    def _training(self, parent: Path | None, resume_from: Path | None) -> TrainingProcess:
        config = self.settings.learner
        return TrainingProcess(
            model_dir=self._engines.model,
            config=config,
            parent_adapter=parent,
            resume_from=resume_from,
            max_memory_mib=config.max_memory_mib,
            step_timeout_s=config.step_timeout_s,
            log_path=self.home / "logs/learner.log",
        )
