"""What a space of the CPU is asked about: one product of a program, with the block that takes its sums."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from weft.expr.nodes import Buffer, Var
from weft.loop.ir import Block
from weft.schedule.facts import Facts
from weft.schedule.schedule import Schedule
from weft.targets.base import Target


@dataclass
class Unit:
    """A product (or another anchor block) that is to be scheduled.

    `taker` is the elementwise block that reads its sums, each at its own element, and is their only reader (None where
    there is none); `to_taker` maps the product's axes to the taker's. `constants` are parameters that never change:
    a copy of one that stands outside all loops is made when the model is compiled. `done` collects the names of the
    blocks that need no further schedule: a space adds every block that it has dealt with.
    """

    schedule: Schedule
    facts: Facts
    taker: Block | None
    to_taker: dict[Var, Var]
    target: Target
    constants: Collection[Buffer]
    done: set[str] = field(default_factory=set)
