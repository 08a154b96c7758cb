"""Announces a run that is set up: on the console, and in config.toml, plan.json and run.json."""

import json
import shlex
from typing import Any

from trainer.config.root import to_toml
from trainer.core.console import plural
from trainer.run.provenance import describe_run, digest
from trainer.training.prediction import predict
from trainer.training.session import Session


def announce(session: Session, origin: dict[str, Any]) -> None:
    """Prints the plan and the facts of the run, and writes config.toml, plan.json and run.json.

    Only here, since an attempt that is refused must leave the files of an earlier one as they are.

    Args:
        session: The run.
        origin: Facts for run.json about the weights that training starts from; none for a start from scratch.
    """
    model, log = session.model, session.reporter.log
    if session.context.is_rank0:
        facts = {
            "plan": digest(model.plan_json),
            "data": session.order.files.fingerprint,
            "lanes": session.order.lanes.lanes,
            "communication_bytes_per_step": model.communication_bytes,
            **origin,
            **predict(session),
            **_measured_before(session),
            "state": "running",
        }
        session.directory.write("config.toml", to_toml(session.config))
        session.directory.write_json("plan.json", model.plan_json)
        session.directory.write_json("run.json", describe_run(session.context, **facts))
    log(f"{model.plan_table}\n")
    log(
        f"{plural(session.order.files.rows, 'sample')} in {plural(len(session.order.files.files), 'file')}, "
        f"{plural(session.order.lanes.steps, 'step')} per epoch, "
        f"{plural(session.context.world_size, 'rank')} on {session.context.device.type}"
    )
    log(f"communication volume per step: {_communication(session)}")
    if start := session.claimed.start:
        log(f"resumed after step {start.step:,} from {start.url}, restored in {origin['restore_seconds']:.1f} s")
    url = session.directory.url
    log(f"run directory {url}; watch: torchx run tools.tensorboard --logdir {shlex.quote(url)}\n")


def _measured_before(session: Session) -> dict[str, Any]:
    """Returns what a run that is complete already has measured."""
    earlier = json.loads(session.directory.read("run.json") or "{}")
    is_complete = session.order.first_step >= session.order.last_step
    return {"measured": earlier["measured"]} if is_complete and "measured" in earlier else {}


def _communication(session: Session) -> str:
    volume, comms = session.model.communication_bytes, session.config.comms
    saved = f"; {volume['fp32'] / 2**20:,.2f} in fp32"
    return ", ".join(
        f"{direction} {volume[direction] / 2**20:,.2f} MiB ({precision}{saved if precision != 'fp32' else ''})"
        for direction, precision in (("forward", comms.forward), ("backward", comms.backward))
    )
