"""The split of a step, from traces written by hand; times of events in microseconds."""

import pytest

from trainer.extensions.profiler.step_split import innermost, split_steps

MAIN, OTHER_THREAD, GPU = 1, 2, 7


def event(name, start, end, cat="user_annotation", tid=MAIN, **arguments):
    return {"ph": "X", "name": name, "cat": cat, "ts": start, "dur": end - start, "tid": tid, "args": arguments}


def parts(split):
    """The parts that took any time, in microseconds per step."""
    assert sum(split.parts.values()) == pytest.approx(split.step_ms)
    return {part: pytest.approx(time * 1e3) for part, time in split.parts.items() if time}


def test_nested_ranges_are_cut_where_another_begins():
    cut = innermost([(0, 10, "a"), (2, 6, "b"), (3, 4, "c"), (6, 7, "d"), (20, 21, "e")])
    assert list(cut) == [
        *((0, 2, "a"), (2, 3, "b"), (3, 4, "c"), (4, 6, "b"), (6, 7, "d"), (7, 10, "a"), (20, 21, "e")),
    ]


def test_on_a_cpu_an_instant_belongs_to_the_innermost_part():
    steps = [
        event("ProfilerStep#4", -500, 0),  # before the first that is asked for
        event("ProfilerStep#5", 0, 1000),
        event("ProfilerStep#6", 1000, 2000),
        event("ProfilerStep#7", 2000, 9000),  # after the last
    ]
    step = [
        event("## copy_batch_to_gpu 9 ##", 0, 100),
        event("## forward 8 ##", 100, 500),
        event("aten::addmm", 120, 180, "cpu_op"),
        event("## EmbeddingBagCollectionAwaitable wait() ##", 200, 350),
        event("aten::cat", 300, 320, "cpu_op"),
        event("## backward ##", 500, 900),
        event("autograd::engine::evaluate_function: MmBackward0", 500, 560, "cpu_op"),
        event("autograd::engine::evaluate_function: All2All_Pooled_WaitBackward", 600, 700, "cpu_op"),
        event(
            "autograd::engine::evaluate_function: torch::autograd::CppNode<SplitLookupFunction_sgd_Op>",
            700,
            750,
            "cpu_op",
        ),
        event("## exchange: gradients ##", 800, 860),
        event("## update ##", 900, 950),
    ]
    later = [one | {"ts": one["ts"] + 1000} for one in step]
    split = split_steps([*steps, *step, *later, {"ph": "M", "name": "thread_name"}], 5, 6)
    assert (split.steps, split.step_ms) == (2, 1.0)
    assert (
        {part: time * 1e3 for part, time in split.parts.items() if time}
        == parts(split)
        == {
            "input": 100,
            "forward": 250,
            "exchange": 150 + 100 + 60,
            "backward": 400 - 100 - 50 - 60,
            "update": 100,
            "other": 50,
        }
    )
    tables, dense = (pytest.approx(0.05) for _ in range(2))
    assert split.details == {"update: tables": tables, "update: dense part": dense, "other: reports": 0}
    assert split.costliest["## forward ##"] == pytest.approx(0.4 - 0.06 - 0.15)
    assert split.costliest["aten::addmm"] == pytest.approx(0.06)


def test_on_a_gpu_kernels_decide_and_an_exchange_counts_where_nothing_computes():
    def kernel(name, start, end, launched, number):
        runtime = event("cudaLaunchKernel", launched, launched + 5, "cuda_runtime", OTHER_THREAD, correlation=number)
        return [runtime, event(name, start, end, "kernel", GPU, correlation=number)]

    trace = [
        event("ProfilerStep#1", 0, 1000),
        event("## forward 0 ##", 0, 200),
        event("## backward ##", 200, 400),
        event("## copy_batch_to_gpu 2 ##", 400, 950),
        *kernel("gemm", 50, 250, 10, 1),  # launched in forward, and still running in backward
        *kernel("ncclDevKernel_SendRecv", 200, 400, 20, 2),  # hidden by the kernels beside it until 250 and after 300
        *kernel("gemm", 300, 500, 210, 3),  # launched by autograd's thread, in backward
        *kernel("split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel", 500, 600, 250, 4),
        event("Memcpy HtoD", 600, 700, "gpu_memcpy", GPU, correlation=99),  # its launch is not in the trace
    ]
    split = split_steps(trace, 1, 1)
    assert parts(split) == {
        "forward": 200,
        "exchange": 50,
        "backward": 200,
        "update": 100,
        "input": 100 + 250,
        "other": 50 + 50,
    }
    assert split.details["update: tables"] == pytest.approx(0.1)
    assert list(split.costliest)[:2] == ["gemm", "ncclDevKernel_SendRecv"]
