"""Operations of a compiled function, recorded by a backend that compiles nothing."""

import torch


def traced(function, *inputs, fullgraph=False):
    """Return the result of a compiled function and the names of its traced operations."""
    seen = []

    def record(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch.compiler.reset()  # other tests' functions count against the limit of recompiling
    return torch.compile(function, backend=record, fullgraph=fullgraph)(*inputs), seen
