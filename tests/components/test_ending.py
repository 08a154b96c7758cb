"""The first error of a job of any scheduler."""

from torchx.specs import AppState, AppStatus, ReplicaStatus, RoleStatus

from components.cli.ending import Ending, first_error
from schedulers.first_error import structured


def status(state, *errors, **fields):
    replicas = [ReplicaStatus(id, state, "trainer", "n1", *error) for id, error in enumerate(errors)]
    return AppStatus(state, msg="NODE_FAIL", roles=[RoleStatus("trainer", replicas)], **fields)


def test_a_schedulers_own_choice_comes_before_those_of_replicas():
    chosen = status(AppState.FAILED, [structured("other", 1, 1)], structured_error_msg=structured("chosen", 1, 1))
    assert first_error(chosen) == "first error: chosen"
    assert first_error(status(AppState.FAILED, [], [structured("other", 1, 1)])) == "first error: trainer/1: other"


def test_without_an_error_the_end_is_one_line():
    assert repr(Ending(**vars(status(AppState.FAILED, [])))) == "the job has ended as FAILED: NODE_FAIL"
    cancelled = status(AppState.CANCELLED, [structured("interrupted", 1, 1)])
    assert repr(Ending(**vars(cancelled))) == "the job has ended as CANCELLED: NODE_FAIL"
