"""Plans count the weights of ids: 4 bytes beside each id, wherever batches are kept and sent."""

import dataclasses

import numpy as np
import torch
from planning import random_tables, topology_of

from torchx_recsys.planner.shard_memory import COPIES_OF_IDS, memory_by_kind
from torchx_recsys.planner.step_time import PHASES, costs
from torchx_recsys.planner.tables import DATA_PARALLEL, KINDS, all_options
from torchx_recsys.planner.topology import cpu_speeds
from trainer.config.root import Config
from trainer.models.builder import build_model
from trainer.plan.tables import tables_to_plan

TOPOLOGY = topology_of(4, 4, on_gpu=False, speeds=cpu_speeds(inter_bandwidth=5e7))
PLAIN = random_tables(5, seed=0)
WEIGHTED = [dataclasses.replace(table, weight_bytes=4) for table in PLAIN]
OPTIONS = all_options(PLAIN, TOPOLOGY)


def ids_of_shards() -> np.ndarray:
    """Returns the ids that each option's shard gets in a step, counted by hand."""
    found = []
    for table, kind in zip(OPTIONS.table, OPTIONS.kind, strict=True):
        ids = sum(PLAIN[table].hotness) * TOPOLOGY.batch_size * TOPOLOGY.ranks
        all_ranks = KINDS[kind] in ("table_wise", "column_wise", "table_column_wise")
        found.append(ids if all_ranks else ids / TOPOLOGY.ranks)
    return np.array(found)


def test_every_table_has_weights_beside_one_that_has():
    tree = {"sparse": {"a": {"rows": 9, "weights": "w"}, "b": {"rows": 9}}, "dense": {"d": {}}}
    for weighted, expected in ((True, [4, 4]), (False, [0, 0])):
        tree["sparse"]["a"] = {"rows": 9} | ({"weights": "w"} if weighted else {})
        config = Config.model_validate({"data": tree})
        model = build_model(config.data, config.model, config.predictions(), torch.device("meta"))
        assert [table.weight_bytes for table in tables_to_plan(model, config, config.planner)] == expected


def test_batches_in_flight_have_room_for_weights():
    plain, weighted = (memory_by_kind(OPTIONS, tables, TOPOLOGY) for tables in (PLAIN, WEIGHTED))
    added = (weighted["ids"] - plain["ids"]).sum(axis=1)
    copies = np.where(OPTIONS.kind == DATA_PARALLEL, 2, COPIES_OF_IDS - 1)
    np.testing.assert_allclose(added, 4 * copies * ids_of_shards())
    for kind in ("tables", "state", "averages", "replicated", "looked_up", "update"):
        np.testing.assert_array_equal(weighted[kind], plain[kind])


def test_a_weight_is_sent_as_an_id_is():
    plain, weighted = (costs(OPTIONS, tables, TOPOLOGY) for tables in (PLAIN, WEIGHTED))
    place = PHASES.index("input")
    sent = np.where(OPTIONS.kind == DATA_PARALLEL, 0, ids_of_shards()) * TOPOLOGY.speeds.id / 1e6
    np.testing.assert_allclose((weighted - plain)[:, place], sent, atol=1e-9)
    np.testing.assert_array_equal(np.delete(weighted, place, axis=1), np.delete(plain, place, axis=1))
