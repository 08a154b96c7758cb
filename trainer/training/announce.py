"""Announces a run that is set up: on the console, and in plan.json and run.json."""

from dataclasses import dataclass
from typing import Any

from trainer.run.provenance import describe_run, digest
from trainer.training.session import Session


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The weights that training starts from, if not from scratch.

    Attributes:
        restore_seconds: Time that restoring took, verification included; None if there was nothing to restore.
        finetune: Facts for run.json about another run's checkpoint; None without one.
    """

    restore_seconds: float | None = None
    finetune: dict[str, Any] | None = None


def announce(session: Session, origin: Origin) -> None:
    """Prints the plan and the facts of the run, and writes plan.json and run.json."""
    model, log = session.model, session.reporter.log
    if session.context.is_rank0:
        session.directory.write_json("plan.json", model.plan_json)
        session.directory.write_json("run.json", describe_run(session.context, **_facts(session, origin)))
    log(f"{model.plan_table}\n")
    log(
        f"{session.order.files.rows:,} samples in {len(session.order.files.files):,} files, "
        f"{session.order.lanes.steps:,} steps per epoch, "
        f"{session.context.world_size} ranks on {session.context.device.type}"
    )
    log(f"communication volume per step: {_communication(session)}")
    if start := session.claimed.start:
        log(f"resumed after step {start.step:,} from {start.url}, restored in {origin.restore_seconds:.1f} s")
    url = session.directory.url
    log(f"run directory {url}; watch: torchx run tools.tensorboard --logdir {url}\n")


def _facts(session: Session, origin: Origin) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "plan": digest(session.model.plan_json),
        "data": session.order.files.fingerprint,
        "lanes": session.order.lanes.lanes,
        "communication_bytes_per_step": session.model.communication_bytes,
    }
    if origin.restore_seconds is not None:
        facts["restore_seconds"] = round(origin.restore_seconds, 3)
    if origin.finetune:
        facts["finetune"] = origin.finetune
    return {**facts, "state": "running"}


def _communication(session: Session) -> str:
    volume, comms = session.model.communication_bytes, session.config.comms
    return ", ".join(
        f"{direction} {volume[direction] / 2**20:,.2f} MiB ({precision}; {volume['fp32'] / 2**20:,.2f} in fp32)"
        for direction, precision in (("forward", comms.forward), ("backward", comms.backward))
    )
