"""How the tokens of a forest see each other, as index tensors that all layers use.

A token sees its own segment up to itself and all of each segment above it. Segments of similar
length stand in one square. Where little stands above them, a copy of it stands in the square beside
each (its context), and nothing else is needed for that tree. Above longer stretches there are
rectangles instead: what stands above, and tokens behind it that see all of it.

Axes: ``T`` tokens of the forest, ``n`` segments of a square, ``L`` tokens of its longest, ``C`` of
its longest context, ``N`` C + L, ``s`` contexts.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from learner.forests import Segment

SHORTEST_SQUARE = 32
"""Segments up to this length are computed together; longer ones with those up to the next power of
two. More classes would save little arithmetic and cost calls in every layer."""

MAX_KEYS, MAX_QUERIES = 512, 128
"""Tokens of a rectangle at most. What a token has read of several is merged, so few wide ones are
better than many narrow ones; the scores of all heads (2.4 MB in float32 for nine) stay in a
processor's cache. Of 512 keys and 512 queries at once each score takes 2.7 times as long."""

LONGEST_CONTEXT = 128
"""A tree is computed in squares alone if at most so many tokens stand above any segment of it. For
four prompts of 48 tokens with 8 answers of 19 each a layer then takes 193 operations, forward and
backward; with a rectangle for each prompt it took 459."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Square:
    """Segments of similar length, each with a copy of its context, the tokens above it.

    Contexts are padded on the left and segments on the right to the longest. Padding points at
    token 0, and no real token sees it.
    """

    query_nL: Tensor  # int64 into T
    key_nN: Tensor  # int64 into T: context, then segment; N = C + L
    padding_nL1: Tensor  # bool; True for a query that is padding
    bias_nL1N: Tensor  # float32, of scores; -inf for a key that is padding or behind the query
    context_sC: Tensor  # int64 into T
    owner_sn: Tensor  # float32; 1 where a segment has this context


@dataclass(frozen=True, kw_only=True, slots=True)
class Rectangle:
    """A stretch of tokens and one behind it that sees all of it."""

    keys: slice  # of T
    queries: slice  # of T


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How the tokens of one forest see each other."""

    squares: tuple[Square, ...]
    place_T: Tensor  # int64, where a token stands among the squares' queries, padding included
    rectangles: tuple[Rectangle, ...]


def layout(segments: Sequence[Segment], device: torch.device) -> Layout:
    """Prepare a forest's attention once for all layers."""
    contexts, alone = _contexts(segments)
    classes: dict[tuple[int, int], list[Segment]] = defaultdict(list)
    for segment in segments:
        length, above = segment.end - segment.start, len(contexts[segment])
        classes[_size_class(length), _size_class(above) if above else 0].append(segment)
    place_T = torch.empty(sum(s.end - s.start for s in segments), dtype=torch.int64)
    squares, place = [], 0
    for members in classes.values():
        longest = max(segment.end - segment.start for segment in members)
        for segment in members:
            length = segment.end - segment.start
            place_T[segment.start : segment.end] = torch.arange(place, place + length)
            place += longest
        squares.append(_square(members, contexts, device))
    rectangles = tuple(_rectangles(alone))
    return Layout(squares=tuple(squares), place_T=place_T.to(device), rectangles=rectangles)


def _contexts(
    segments: Sequence[Segment],
) -> tuple[dict[Segment, tuple[int, ...]], tuple[Segment, ...]]:
    """Return what stands above each segment, () for those of long trees; and their rectangles."""
    contexts: dict[Segment, tuple[int, ...]] = {}
    rectangles: list[Segment] = []
    above: list[Segment] = []
    tree: list[Segment] = []
    for segment, following in zip(segments, (*segments[1:], None), strict=True):
        while above and above[-1].subtree_end <= segment.start:
            above.pop()
        contexts[segment] = tuple(i for one in above for i in range(one.start, one.end))
        above.append(segment)
        tree.append(segment)
        if following is None or following.start >= above[0].subtree_end:
            if max(len(contexts[one]) for one in tree) > LONGEST_CONTEXT:
                contexts |= dict.fromkeys(tree, ())
                rectangles += tree
            tree = []
    return contexts, tuple(rectangles)


def _rectangles(segments: Sequence[Segment]) -> Iterator[Rectangle]:
    """Yield what stands above segments without a context; a chain is one stretch to those below."""
    for chain in _chains(segments):
        start, last = chain[0].start, chain[-1]
        for segment in chain[1:]:
            yield from _cut(start, segment.start, segment.end)
        yield from _cut(start, last.end, last.subtree_end)


def _chains(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Put segments together of which each is followed by the only one that hangs on it."""
    chains: list[list[Segment]] = []
    for segment in segments:
        above = chains[-1][-1] if chains else None
        if above and (above.end, above.subtree_end) == (segment.start, segment.subtree_end):
            chains[-1].append(segment)
        else:
            chains.append([segment])
    return chains


def _cut(start: int, middle: int, end: int) -> Iterator[Rectangle]:
    """Yield rectangles of keys ``start:middle`` and queries ``middle:end``."""
    for keys in _even(start, middle, MAX_KEYS):
        for queries in _even(middle, end, MAX_QUERIES):
            yield Rectangle(keys=keys, queries=queries)


def _even(start: int, end: int, size: int) -> list[slice]:
    """Cut a stretch into as few parts of up to ``size`` as it takes, none much shorter."""
    number = math.ceil((end - start) / size)
    cuts = [start + (end - start) * i // max(number, 1) for i in range(number + 1)]
    return [slice(a, b) for a, b in pairwise(cuts)]


def _size_class(length: int) -> int:
    return max(SHORTEST_SQUARE, 1 << (length - 1).bit_length())


def _square(
    members: Sequence[Segment], contexts: Mapping[Segment, tuple[int, ...]], device: torch.device
) -> Square:
    L = max(segment.end - segment.start for segment in members)
    C = max(len(contexts[segment]) for segment in members)
    query_nL = torch.zeros(len(members), L, dtype=torch.int64)
    above_nC = torch.zeros(len(members), C, dtype=torch.int64)
    for i, segment in enumerate(members):
        query_nL[i, : segment.end - segment.start] = torch.arange(segment.start, segment.end)
        context = contexts[segment]
        above_nC[i, C - len(context) :] = torch.tensor(context, dtype=torch.int64)
    lengths_n = torch.tensor([segment.end - segment.start for segment in members])
    above_n = torch.tensor([len(contexts[segment]) for segment in members])
    padding_nL = torch.arange(L) >= lengths_n[:, None]
    bias_nLN = torch.zeros(len(members), L, C + L)
    bias_nLN[:, :, :C].masked_fill_((torch.arange(C) < C - above_n[:, None])[:, None], -torch.inf)
    bias_nLN[:, :, C:] = torch.full((L, L), -torch.inf).triu(1)
    if above_n.min() == C:
        bias_nLN = bias_nLN[:1]
    distinct = list(dict.fromkeys(contexts[segment] for segment in members))
    owner_sn = torch.tensor([[contexts[m] == one for m in members] for one in distinct])
    return Square(
        query_nL=query_nL.to(device),
        key_nN=torch.cat([above_nC, query_nL], 1).to(device),
        padding_nL1=padding_nL[:, :, None].to(device),
        bias_nL1N=bias_nLN[:, :, None].to(device),
        context_sC=above_nC[owner_sn.int().argmax(1)].to(device),
        owner_sn=owner_sn.float().to(device),
    )
